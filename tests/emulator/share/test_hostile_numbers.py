"""Numbers in requests about share groups that no leader and no consumer sends: an error code, and nothing changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.share import state_coordinator
from dualwrite.broker_emulator.share.state import StateBatch
from tests.emulator.api.raw_client import RawClient
from tests.emulator.hostile.turns import LONGEST, watched
from tests.interop.raw_wire.share_states import StateRequests
from tests.interop.raw_wire.sharing import Sharer, set_group

LAST = 2**63 - 1
INT32 = 2**31 - 1


@pytest.fixture
def emulator(caplog: pytest.LogCaptureFixture) -> Iterator[Emulator]:
    caplog.set_level(logging.WARNING)
    config = BrokerConfig(properties={"group.share.assignment.interval.ms": "0"})
    with Emulator(config=config, topics={"t": 1}) as broker:
        yield broker
    assert "Traceback" not in caplog.text


@pytest.fixture
def states(client: RawClient) -> StateRequests:
    requests = StateRequests(client, "g", client.topic_id("t"))
    assert requests.send("initialize", state_epoch=1, start_offset=0).error_code == 0
    return requests


# --- brokers ----------------------------------------------------------------------------------------------------------


IMPOSSIBLE_BATCHES = [
    (5, 3, 0, 1),
    (-1, 3, 0, 1),
    (-(2**63), LAST, 0, 1),
    (LAST, LAST, 2, 1),
    (0, LAST, 2, 1),
    (0, 3, 1, 1),
    (0, 3, 3, 1),
    (0, 3, 127, 1),
    (0, 3, -128, 1),
    (0, 3, 0, -1),
    (0, 3, 0, 32767),
]


def test_batches_that_cannot_be(states: StateRequests) -> None:
    for batch in IMPOSSIBLE_BATCHES:
        assert states.write(1, 0, 0, (0, 0, 2, 1), batch) == 42, batch
        assert states.send("read", leader_epoch=0).state_batches == (), batch


def test_numbers_that_cannot_be(states: StateRequests) -> None:
    assert states.write(0, 0, 0) == 124
    # a record behind the last one is complete
    for numbers in ((-1, 0, 0), (-(2**31), 0, 0), (1, -1, 0), (1, 0, -2), (1, 0, -(2**63)), (1, 0, LAST)):
        assert states.write(*numbers) == 42, numbers
    fields = {"state_epoch": 1, "leader_epoch": 0, "start_offset": 0, "state_batches": ()}
    for count in (-2, -(2**31)):
        assert states.send("write", **fields, delivery_complete_count=count).error_code == 42, count
    for state_epoch, start_offset in ((-1, 0), (-(2**31), 0), (1, -2), (1, -(2**63))):
        begun = states.send("initialize", state_epoch=state_epoch, start_offset=start_offset)
        assert begun.error_code == 42, (state_epoch, start_offset)
    assert states.send("summary", leader_epoch=0).start_offset == 0


@pytest.mark.parametrize("kind", ["neighbours", "nested"])
def test_tens_of_thousands_of_batches(emulator: Emulator, states: StateRequests, kind: str) -> None:
    """Overlaying them one by one walked over all others each time."""
    many = 8_000
    batches = {
        "neighbours": [StateBatch(2 * index, 2 * index, 0, 1) for index in range(many)],
        "nested": [StateBatch(index, 3 * many - index, 0, 1 + index % 2) for index in range(many)],
    }[kind]
    with watched(emulator) as turns:
        assert states.write(1, 0, 0, *batches) == 0
        assert len(states.send("read", leader_epoch=0).state_batches) > many // 2
    assert turns.longest < LONGEST


def test_state_that_fits_no_record(states: StateRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_coordinator, "MAX_BATCHES", 100)
    batches = [(2 * index, 2 * index, 0, 1) for index in range(101)]
    assert states.write(1, 0, 0, *batches) == -1
    assert states.write(1, 0, 0, *batches[:50]) == 0
    assert states.write(1, 0, 0, *batches[50:]) == -1
    assert len(states.send("read", leader_epoch=0).state_batches) == 50


# --- members ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sharer(client: RawClient) -> Sharer:
    set_group(client, "g", auto_offset_reset="earliest")
    member = Sharer(client, "g", "t").join()
    member.put("a", "b", "c")
    assert member.acquire() == [(0, 2, 1)]
    return member


@pytest.mark.parametrize("name", ["min_bytes", "max_bytes", "max_records", "batch_size"])
@pytest.mark.parametrize("value", [-(2**31), -1, 0, INT32])
def test_limits_of_a_fetch(sharer: Sharer, name: str, value: int) -> None:
    """A negative one is like 0: the least that can be."""
    sharer.put("d")
    limit: dict[str, Any] = {name: value}
    part = sharer.fetch(max_wait_ms=0, **limit)
    assert (part.error, part.acknowledge_error) == (0, 0)
    assert part.acquired == ([] if name == "max_records" and value <= 0 else [(3, 3, 1)])


def alter(client: RawClient, start_offset: int) -> Any:
    row = {"partition_index": 0, "start_offset": start_offset}
    topics = ({"topic_name": "t", "partitions": (row,)},)
    return client.call("alter_share_group_offsets", 0, group_id="new", topics=topics)


@pytest.mark.parametrize("start_offset", [-2, -(2**63)])
def test_start_offsets_that_cannot_be(client: RawClient, start_offset: int) -> None:
    assert alter(client, start_offset).error_code == 42
    described = client.call("share_group_describe", 1, group_ids=("new",), include_authorized_operations=False)
    assert described.groups[0].error_code == 69, "the group was not created"
