"""`__transaction_state` as any consumer reads it: partitions, keys, values and tags, by profile (KIP-890, KIP-915)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from tests.emulator.wire.world import ABORT, COMMIT, KAFKA_4_3, KIP_939, LAST, World
from tests.interop.raw_wire.test_transaction_log import tags_of
from tests.interop.wire import Code

rule = pytest.mark.rule
TOPIC = "__transaction_state"
PREVIOUS_PRODUCER_ID, NEXT_PRODUCER_ID, CLIENT_VERSION, NEXT_EPOCH, LAST_EPOCH = range(5)


@dataclass(frozen=True, slots=True)
class Value:
    """One value as it stands in the log."""

    version: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: int
    tags: dict[int, int]
    raw: bytes


class StateLog:
    """The records of a transactional id."""

    def __init__(self, world: World) -> None:
        self._wire = world.wire

    def values(self, transactional_id: str) -> list[Value]:
        name = transactional_id.encode()
        key = struct.pack(">hh", 0, len(name)) + name
        return [
            decode(value)
            for index in range(5)
            for batch in self._wire.fetch(TOPIC, partition=index).batches
            for found, value in zip(batch.keys, batch.values, strict=True)
            if found == key and value is not None
        ]


def decode(raw: bytes) -> Value:
    version, producer_id, epoch, timeout_ms, state = struct.unpack_from(">hqhib", raw)
    return Value(version, producer_id, epoch, timeout_ms, state, tags_of(raw) if version else {}, raw)


def two_transactions(world: World) -> tuple[list[Value], int]:
    """A commit, an abort, an initialisation; and the producer id of all of it."""
    identity = world.open()
    identity = world.end("x", identity, commit=COMMIT)
    assert world.write("x", identity, sequence=0 if world.has_tv2 else 1).error == Code.NONE
    identity = world.end("x", identity, commit=ABORT)
    world.wire.init_ok("x", identity)
    return StateLog(world).values("x"), identity.producer_id


STATES = [0, 1, 2, 4, 1, 3, 5, 0]


@pytest.mark.profiles(KIP_939)
@rule("Transaction log / kip-939 writes value version 1 with all tags, those at their default left out")
def test_tags_of_the_kips(world: World) -> None:
    values, producer_id = two_transactions(world)
    assert [value.state for value in values] == STATES
    assert [value.producer_epoch for value in values] == [0, 0, 1, 1, 1, 2, 2, 3]
    last = [value.tags.get(LAST_EPOCH) for value in values]
    assert last == [None, None, 0, 0, 0, 1, 1, 2]
    assert [value.tags.get(CLIENT_VERSION) for value in values] == [None] + [2] * 7
    # the pid that ended the transaction, at its completion
    previous = [value.tags.get(PREVIOUS_PRODUCER_ID) for value in values]
    assert previous == [None, None, None, producer_id, None, None, producer_id, None]


@pytest.mark.profiles(KIP_939, KAFKA_4_3)
@rule("Transaction log / a rotation: the next producer id in Prepare, the previous one in Complete (KAFKA-20310)")
def test_rotation(world: World) -> None:
    last = world.at_epoch(LAST)
    assert world.write("x", last).error == Code.NONE
    fresh = world.end("x", last, commit=COMMIT)
    prepare, complete = StateLog(world).values("x")[-2:]
    assert (prepare.producer_id, prepare.producer_epoch) == (last.producer_id, LAST + 1)
    assert prepare.tags[NEXT_PRODUCER_ID] == fresh.producer_id
    assert (complete.producer_id, complete.producer_epoch) == (fresh.producer_id, 0)
    assert complete.tags[PREVIOUS_PRODUCER_ID] == last.producer_id
    assert NEXT_PRODUCER_ID not in complete.tags
    if world.profile is KIP_939:
        assert (prepare.tags[NEXT_EPOCH], complete.tags[LAST_EPOCH]) == (0, LAST)
    else:
        assert not {NEXT_EPOCH, LAST_EPOCH} & (prepare.tags.keys() | complete.tags.keys())


@pytest.mark.profiles(KIP_939)
@rule("Transaction log / the client's pair beside a prepared transaction is in the log (KIP-939)")
def test_dual_identity(world: World) -> None:
    opened = world.wire.init_ok("x", version=6, enable_2pc=True)
    assert world.write("x", opened).error == Code.NONE
    world.wire.init_ok("x", version=6, enable_2pc=True, keep=True)
    value = StateLog(world).values("x")[-1]
    assert (value.state, value.producer_epoch, value.timeout_ms) == (1, opened.producer_epoch, 2147483647)
    assert (value.tags[NEXT_PRODUCER_ID], value.tags[NEXT_EPOCH]) == (opened.producer_id, opened.producer_epoch + 1)
