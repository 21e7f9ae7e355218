"""Access control: every API with every right that it asks for, on a real Apache Kafka and on the emulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from dualwrite.broker_emulator import Profile
from dualwrite.testing.server_unavailable import ServerUnavailableError, servers_are_required
from tests.interop.conftest import KAFKA_VERSION_USED
from tests.interop.raw_wire.access import Case, SecuredBroker, emulated_kafka, real_kafka
from tests.interop.raw_wire.access_cases import CASES
from tests.interop.raw_wire.access_requests import REQUESTS

USERS = {
    f"user{number:03d}": Case(request, rules, dict(answer))
    for number, (request, rules, answer) in enumerate(
        (request, rules, answer) for request, answers in CASES.items() for rules, answer in answers
    )
}

EMULATED_DIFFERENTLY: Mapping[tuple[str, str], str] = {
    ("fetch_as_replica", "CLUSTER_ACTION cluster"): (
        "a real broker knows which replicas a partition has, and answers 6 to others; here all of them share one log"
    ),
}
"""Cases in which the emulator answers otherwise, and why."""


@pytest.fixture(scope="module", params=["apache_kafka", "emulated_kafka", "emulated_kafka_4_3"])
def secured(request: pytest.FixtureRequest) -> Iterator[SecuredBroker]:
    """Each broker in turn, with all the users and their rules."""
    if request.param == "apache_kafka":
        server = real_kafka(USERS, KAFKA_VERSION_USED)
        try:
            server.start()
        except ServerUnavailableError as error:
            if servers_are_required():
                raise
            pytest.skip(str(error))
        broker = SecuredBroker("apache_kafka", server.address("PLAINTEXT"), server.address("SASL"))
        stop = server.stop
    else:
        profile = Profile.KIP_939 if request.param == "emulated_kafka" else Profile.KAFKA_4_3
        emulator = emulated_kafka(USERS, profile).start()
        broker = SecuredBroker(request.param, emulator.bootstrap("PLAINTEXT"), emulator.bootstrap("SASL"))
        stop = emulator.stop
    try:
        broker.prepare(USERS.items())
        yield broker
    finally:
        broker.admin.close()
        stop()


def test_every_request_has_cases() -> None:
    assert CASES.keys() == REQUESTS.keys()


@pytest.mark.parametrize("api", CASES)
def test_who_may(secured: SecuredBroker, api: str) -> None:
    """All cases of a request: they are many, and each is one question."""
    differing = {}
    for who, case in USERS.items():
        if case.request != api:
            continue
        answered = secured.answer(who, case)
        if secured.name != "apache_kafka" and (api, case.rules) in EMULATED_DIFFERENTLY:
            assert answered != case.answer, f"{case}: no longer a difference"
        elif answered != case.answer:
            differing[str(case)] = (answered, case.answer)
    assert not differing
