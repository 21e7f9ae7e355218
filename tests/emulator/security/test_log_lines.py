"""No client injects lines into the log, by its names or by its requests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.security.settings import listeners_from
from dualwrite.broker_emulator.text import log_text
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.emulator.security.login_script import bearer, unsigned_token
from tests.support.conditions import until

FORGED = "x\r\n2026-01-01 00:00:00,000 INFO User:root from 127.0.0.1 has logged in\x1b[2K\u2028\u202e"
SPELLED_OUT = r"x\r\n2026-01-01 00:00:00,000 INFO User:root from 127.0.0.1 has logged in\x1b[2K\u2028\u202e"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    listeners = listeners_from(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
        }
    )
    config = BrokerConfig(connection_failed_authentication_delay_ms=0)
    with Emulator(listeners=listeners, config=config, acls=(), topics={"t": 1}) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _log_of_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_a_subject_is_spelled_out(emulator: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    with RawClient(emulator.bootstrap_servers) as client:
        assert client.call("sasl_handshake", 1, mechanism="OAUTHBEARER").error_code == 0
        token = bearer(unsigned_token(time.time(), {"sub": FORGED}))
        assert client.call("sasl_authenticate", 2, auth_bytes=token).error_code == 0
        topic = {"name": "other", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        created = client.call("create_topics", 7, topics=(topic,), timeout=milliseconds(1000), validate_only=False)
        assert created.topics[0].error_code == 29
    until(lambda: any("is denied" in message for message in caplog.messages))
    _check(caplog)


def test_readable_text_stays_unchanged_and_long_text_is_cut() -> None:
    assert log_text("Jörg 名前 ' \"") == "Jörg 名前 ' \""
    assert log_text("\ud800\x7f") == r"\ud800\x7f"
    assert len(log_text("\n" * 1_000_000)) < 2100


def _check(caplog: pytest.LogCaptureFixture) -> None:
    assert any(SPELLED_OUT in message for message in caplog.messages)
    assert all(message.isprintable() for message in caplog.messages)
