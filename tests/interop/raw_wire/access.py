"""Users with rules of their own, on brokers with access control: a real Apache Kafka and the emulator, set up alike.

Every client at PLAINTEXT is a super user. At the listener SASL every case logs in as a user of its own, so that all
rules of all cases can be granted at once and no case sees another's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.broker_emulator.security.listener import Listener
from dualwrite.broker_emulator.security.sasl.mechanism import Sasl
from tests.interop.raw_wire.access_requests import (
    ADMIN_AND_CLIENT_REQUESTS,
    ANY_ACL,
    COMMITTED,
    Scene,
    ask,
    codes,
)
from tests.interop.raw_wire.access_share_requests import SHARE_REQUESTS
from tests.interop.wire import GROUP, NO_IDENTITY, TRANSACTION, Wire, message, wait_for, wait_until
from tests.support.servers.apache_kafka import ApacheKafka

REQUESTS = {**ADMIN_AND_CLIENT_REQUESTS, **SHARE_REQUESTS}
"""All requests of the cases."""
PASSWORD = "password"
ANONYMOUS = "User:ANONYMOUS"

_RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "id": 5, "user": 7}
_OPERATIONS = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "TWO_PHASE_COMMIT": 15,
}
_LITERAL, _PREFIXED = 3, 4
_RULE = re.compile(r"(?P<deny>not )?(?P<operation>[A-Z_]+) (?P<resource>[a-z]+) ?(?P<name>\S*)(?: from (?P<host>\S+))?")


def creation(rule: str, who: str) -> dict[str, Any]:
    """A rule as CreateAcls takes it, from a line such as `READ topic known`.

    `not` refuses; a name that ends with `...` is a prefix; `?` is the user's name; `from` names a host.
    """
    read = _RULE.fullmatch(rule)
    assert read is not None, rule
    name = read["name"].replace("?", who) or "kafka-cluster"
    return {
        "resource_type": _RESOURCES[read["resource"]],
        "resource_name": name.removesuffix("..."),
        "resource_pattern_type": _PREFIXED if name.endswith("...") else _LITERAL,
        "principal": f"User:{who}",
        "host": read["host"] or "*",
        "operation": _OPERATIONS[read["operation"]],
        "permission_type": 2 if read["deny"] else 3,
    }


@dataclass(frozen=True, slots=True)
class Case:
    """A request of a user with these rules, and its response."""

    request: str
    rules: str
    answer: dict[str, int]

    def __str__(self) -> str:
        return f"{self.request}: {self.rules or 'no rule'}"


class SecuredBroker:
    """A running broker with access control, whose users are the cases' numbers."""

    def __init__(self, name: str, admin_address: str, user_address: str) -> None:
        self.name = name
        self.admin_address = admin_address
        self.admin = Wire(admin_address)
        self._user_address = user_address
        self.known_id: Any = None

    def prepare(self, cases: Iterable[tuple[str, Case]]) -> None:
        """Make the resources of the requests, and grant every user their rules."""
        self.admin.wait_for_coordinator("any", TRANSACTION)
        for topic in ("known", "other"):
            self.admin.create_topic(topic)
            assert self.admin.produce(None, NO_IDENTITY, topic, -1, transactional=False, version=9).error == 0
        for group in ("offsets", "others"):
            self.admin.wait_for_coordinator(group, GROUP)
            topics = [{"name": name, "partitions": [COMMITTED]} for name in ("known", "other")]
            position = {"generation_id_or_member_epoch": -1, "member_id": ""}
            self.admin.call(message("OffsetCommit", 8, group_id=group, topics=topics, **position))
        described = message("Metadata", 12, topics=[{"name": "known"}], allow_auto_topic_creation=False)
        self.known_id = self.admin.call(described).topics[0].topic_id
        self.grant([creation(rule, who) for who, case in cases for rule in case.rules.split(", ") if rule])

    def grant(self, creations: list[dict[str, Any]]) -> None:
        """Add rules and wait until the broker knows them."""
        answer = self.admin.call(message("CreateAcls", 3, creations=creations))
        assert not [result for result in answer.results if result.error_code]
        wait_until(lambda: self.count_acls() >= len({tuple(each.values()) for each in creations}))

    def count_acls(self) -> int:
        """How many rules the broker decides by."""
        answer = self.admin.call(message("DescribeAcls", 3, **{**ANY_ACL, "principal_filter": None}))
        return sum(len(resource.acls) for resource in answer.resources)

    def login(self, user: str) -> Wire:
        """A connection of a user."""
        wire = Wire(self._user_address)
        assert wire.call(message("SaslHandshake", 1, mechanism="PLAIN")).error_code == 0
        token = f"\0{user}\0{PASSWORD}".encode()
        assert wire.call(message("SaslAuthenticate", 2, auth_bytes=token)).error_code == 0
        return wire

    def scene(self, who: str) -> Scene:
        """The surroundings of a user's request."""
        return Scene(self.admin, who, self.known_id)

    def answer(self, who: str, case: Case) -> dict[str, int]:
        """The response to the user; while a topic is being created, or a coordinator loads, the final one."""
        scene = self.scene(who)
        request = REQUESTS[case.request](scene)
        with self.login(who) as wire:
            transient = {14, 16} | ({3, 5} if case.request == "metadata_that_creates" else set())
            return wait_for(
                lambda: codes(ask(wire, request), scene),
                lambda answered: (transient - {*case.answer.values()}).isdisjoint(answered.values()),
            )


def real_kafka(users: Iterable[str], version: str) -> ApacheKafka:
    """Not started yet."""
    names = " ".join(f'user_{name}="{PASSWORD}"' for name in users)
    return ApacheKafka(
        version=version,
        two_phase_commit=True,
        listeners={"PLAINTEXT": "PLAINTEXT", "SASL": "SASL_PLAINTEXT"},
        properties={
            "group.share.assignment.interval.ms": "0",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ANONYMOUS,
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {names};"
            ),
        },
    )


def emulated_kafka(users: Iterable[str], profile: Profile) -> Emulator:
    """Not started yet."""
    passwords = dict.fromkeys(users, PASSWORD)
    return Emulator(
        config=BrokerConfig(
            profile=profile,
            unstable_api_versions_enable=True,
            transaction_state_log_num_partitions=5,
            offsets_topic_num_partitions=5,
            properties={"group.share.assignment.interval.ms": "0"},
        ),
        listeners=[Listener(), Listener("SASL", sasl=Sasl(mechanisms=["PLAIN"], plain_users=passwords))],
        super_users=[ANONYMOUS],
    )
