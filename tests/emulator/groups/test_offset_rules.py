"""When offsets expire."""

from __future__ import annotations

import struct

import pytest

from dualwrite.broker_emulator.groups.consumer_protocol import read_subscribed_topics
from dualwrite.broker_emulator.groups.group import Group, GroupState
from dualwrite.broker_emulator.groups.offsets import is_expired
from dualwrite.broker_emulator.groups.records import CommittedOffset

RETENTION_MS = 100
EMPTY, STABLE = GroupState.EMPTY, GroupState.STABLE


def group(state: GroupState, protocol_type: str | None, topics: set[str] | None, since_ms: int | None = 50) -> Group:
    subscribed = None if topics is None else frozenset(topics)
    return Group(
        group_id="g",
        state=state,
        protocol_type=protocol_type,
        subscribed_topics=subscribed,
        state_timestamp_ms=since_ms,
    )


@pytest.mark.parametrize(
    ("what", "expires_ms"),
    [
        (group(EMPTY, None, None), 110),  # since the commit: the group never had members
        (group(EMPTY, "consumer", set()), 150),  # since the group is empty
        (group(EMPTY, "consumer", set(), None), 110),  # an old record does not say since when
        (group(EMPTY, "connect", None), 150),
        (group(STABLE, "consumer", {"other"}), 110),
        (group(STABLE, "consumer", {"t"}), None),
        (group(STABLE, "consumer", None), None),  # members that cannot be read may consume anything
        (group(STABLE, "connect", None), None),
        (group(GroupState.PREPARING_REBALANCE, "consumer", {"other"}), None),
        (group(GroupState.COMPLETING_REBALANCE, "consumer", {"other"}), None),
    ],
)
def test_expiry(what: Group, expires_ms: int | None) -> None:
    committed = CommittedOffset(1, -1, "", 10)
    expired = [at for at in range(300) if is_expired(what, "t", committed, at, RETENTION_MS)]
    assert expired == ([] if expires_ms is None else list(range(expires_ms, 300)))


def test_subscribed_topics() -> None:
    metadata = struct.pack(">hih1sh2si", 1, 2, 1, b"t", 2, b"uv", -1)
    assert read_subscribed_topics(metadata) == frozenset({"t", "uv"})
    for size in range(12):
        assert read_subscribed_topics(metadata[:size]) is None
    assert read_subscribed_topics(struct.pack(">hih", 0, 1, -1)) is None
