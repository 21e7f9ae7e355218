"""Logins at the wire get Apache Kafka's responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from dualwrite.broker_emulator.security.settings import listeners_from
from tests.emulator.api.raw_client import RawClient
from tests.emulator.security.login_cases import BRIEF_MS, CASES, DIFFERENCES, LISTENERS, PROPERTIES, SCRAM_USERS
from tests.emulator.security.login_script import LoginScript

ADDRESSES = {
    "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
    "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(connection_failed_authentication_delay_ms=0, sasl_server_max_receive_size=4096)
    listeners = listeners_from({**PROPERTIES, **ADDRESSES})
    with Emulator(listeners=listeners, config=config, clock=VirtualClock(), scram_users=SCRAM_USERS) as broker:
        yield broker


@pytest.mark.parametrize("name", CASES)
def test_every_login_is_answered_as_by_apache_kafka(emulator: Emulator, name: str) -> None:
    listener, run, transcript = CASES[name]
    with RawClient(emulator.bootstrap(listener)) as client:
        now_s: Callable[[], float] = lambda: emulator.clock.now_ms() / 1000  # noqa: E731
        script = LoginScript(client, now_s, lambda: emulator.advance_clock(BRIEF_MS + 1))
        run(script)
    difference = DIFFERENCES.get(name)
    assert script.transcript == (transcript if difference is None else difference.transcript)


def test_every_listed_difference_is_real() -> None:
    for name, difference in DIFFERENCES.items():
        assert difference.transcript != CASES[name].transcript
