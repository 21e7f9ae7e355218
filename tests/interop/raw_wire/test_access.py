"""Access control: every API with every right that it asks for, on a real Apache Kafka and on the emulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from kafka.protocol.api_message import ApiMessage

from dualwrite.broker_emulator import Profile
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.conftest import KAFKA_VERSION_USED
from tests.interop.raw_wire import acl_script
from tests.interop.raw_wire.access import REQUESTS, Case, SecuredBroker, creation, emulated_kafka, real_kafka
from tests.interop.raw_wire.access_cases import CASES
from tests.interop.wire import wait_until
from tests.support.servers.required import servers_are_required

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
    **{
        (api, "READ group share-?, READ topic *"): (
            "100 for the topic; with an authorizer, Kafka 4.4.0 stumbles over an unknown id (NullPointerException)"
        )
        for api in ("share_fetch_of_unknown_id", "share_acknowledge_of_unknown_id")
    },
}
"""Cases in which the emulator answers otherwise, and why."""


@pytest.fixture(
    scope="module",
    params=[
        "apache_kafka",  # the expected responses are its own
        "emulated_kafka",
        pytest.param("emulated_kafka_4_4", marks=pytest.mark.proof),
    ],
)
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
        profile = Profile.KIP_939 if request.param == "emulated_kafka" else Profile.KAFKA_4_4
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
def test_access_by_rule(secured: SecuredBroker, api: str) -> None:
    """All cases of a request: there are many, and each is one request."""
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


def test_acls_are_added_found_and_removed(secured: SecuredBroker) -> None:
    wire, every = secured.admin, list(range(len(acl_script.RULES)))
    for _ in range(2):  # the second time they are there already
        assert acl_script.created(wire, *acl_script.RULES) == [(0, "")] * len(every)
    wait_until(lambda: acl_script.described(wire) == every)
    found = {name: acl_script.described(wire, **wanted) for name, (wanted, _) in acl_script.FILTERS.items()}
    assert found == {name: expected for name, (_, expected) in acl_script.FILTERS.items()}
    removed = acl_script.deleted(wire, *(wanted for wanted, _, _ in acl_script.DELETIONS))
    assert removed == [(code, places) for _, code, places in acl_script.DELETIONS]
    gone = {place for _, _, places in acl_script.DELETIONS for place in places}
    wait_until(lambda: acl_script.described(wire) == sorted(set(every) - gone))


@pytest.mark.parametrize("name", acl_script.ODD)
def test_odd_rules(secured: SecuredBroker, name: str) -> None:
    rule, code, text = acl_script.ODD[name]
    assert acl_script.created(secured.admin, rule) == [(code, text)]


@pytest.mark.parametrize("name", acl_script.UNKNOWN)
def test_an_unknown_api_closes_the_connection(secured: SecuredBroker, name: str) -> None:
    assert all(acl_script.is_closed_for(secured.admin_address, acl_script.UNKNOWN[name]))


def test_a_rule_decides_from_then_on(secured: SecuredBroker) -> None:
    """On a connection that was there before."""
    user = next(user for user, case in USERS.items() if case == Case("heartbeat", "", {"": 30}))
    rule = creation("READ group offsets", user)
    with secured.login(user) as wire:
        heartbeat = REQUESTS["heartbeat"](secured.scene(user))
        assert isinstance(heartbeat, ApiMessage)
        assert wire.call(heartbeat).error_code == 30
        secured.grant([rule])
        wait_until(lambda: wire.call(heartbeat).error_code == 25)
        acl_script.deleted(secured.admin, {"principal_filter": rule["principal"]})
        wait_until(lambda: wire.call(heartbeat).error_code == 30)
