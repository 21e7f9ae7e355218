"""Requests to a share group while its state is being deleted or pruned."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.groups.share.group import ShareGroup
from dualwrite.broker_emulator.groups.share.membership import ShareHeartbeat
from dualwrite.broker_emulator.groups.share.service import AlteredOffset
from dualwrite.broker_emulator.share import state_coordinator
from dualwrite.broker_emulator.share.state import (
    NO_OFFSET,
    UNKNOWN_COUNT,
    ShareStateUpdate,
    StateBatch,
    StateError,
    StateKey,
)
from dualwrite.broker_emulator.share.state_coordinator import StateShard
from tests.emulator.api.raw_client import RawClient
from tests.emulator.inside import await_in_loop, run_in_loop
from tests.interop.raw_wire.sharing import Sharer, set_group

ACCEPT = 1
CONFIG = BrokerConfig(
    offsets_topic_num_partitions=1,
    properties={
        "group.share.assignment.interval.ms": "0",
        "share.coordinator.state.topic.num.partitions": "1",
    },
)


@contextmanager
def held(name: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Let each `initialize` or `delete` of a share-partition's state wait when it is done, until the end of the block.

    The semaphore is released for each that waits.
    """
    states = emulator.cluster.share_states
    work, waits, may_go_on = getattr(states, name), threading.Semaphore(0), asyncio.Event()

    async def work_and_wait(*args: Any) -> None:
        await work(*args)
        waits.release()
        await may_go_on.wait()

    with monkeypatch.context() as patch:
        patch.setattr(states, name, work_and_wait)
        try:
            yield waits
        finally:
            run_in_loop(emulator, may_go_on.set)


def empty_group(client: RawClient, group_id: str = "g", topic: str = "orders") -> None:
    """Make a group that has state and no members."""
    set_group(client, group_id, auto_offset_reset="earliest")
    assert Sharer(client, group_id, topic).join().beat(-1).error_code == 0


def send_delete_groups(client: RawClient, group_id: str = "g") -> int:
    return client.send("delete_groups", 2, groups_names=(group_id,))


def error_of_deletion(client: RawClient, correlation_id: int) -> int:
    return int(client.receive("delete_groups", 2, correlation_id).results[0].error_code)


def send_delete_offsets(client: RawClient, topic: str = "orders") -> int:
    topics = ({"topic_name": topic},)
    return client.send("delete_share_group_offsets", 0, group_id="g", topics=topics)


def receive_delete_offsets(client: RawClient, correlation_id: int) -> Any:
    return client.receive("delete_share_group_offsets", 0, correlation_id)


def has_state(emulator: Emulator, key: StateKey) -> bool:
    """Return whether a leader can read the state of a share-partition."""

    def is_readable() -> bool:
        try:
            emulator.cluster.share_states.shard(key).read(key, 0)
        except StateError:
            return False
        return True

    return run_in_loop(emulator, is_readable)


def test_a_group_that_is_joined_during_its_deletion_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(config=CONFIG, topics={"orders": 2}) as emulator:
        with RawClient(emulator.bootstrap_servers) as deleter, RawClient(emulator.bootstrap_servers) as client:
            empty_group(client)
            with held("delete", emulator, monkeypatch) as waits:
                sent = send_delete_groups(deleter)
                assert waits.acquire(timeout=60)
                sharer = Sharer(client, "g", "orders").join()
            assert error_of_deletion(deleter, sent) == 68
            assert sharer.beat().error_code == 0
            sharer.put("a")
            assert sharer.acquire() == [(0, 0, 1)]
            assert has_state(emulator, StateKey("g", sharer.topic_id, 1)), "it is not deleted behind the member's back"


def test_two_at_once_delete_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(config=CONFIG, topics={"orders": 1}) as emulator:
        with RawClient(emulator.bootstrap_servers) as first, RawClient(emulator.bootstrap_servers) as second:
            empty_group(first)
            with held("delete", emulator, monkeypatch) as waits:
                sent = [(client, send_delete_groups(client)) for client in (first, second)]
                assert all(waits.acquire(timeout=60) for _ in sent)
            assert sorted(error_of_deletion(*deletion) for deletion in sent) == [0, 69]


def test_members_that_join_while_a_topic_is_deleted_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(config=CONFIG, topics={"orders": 1, "others": 1}) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            for group_id in ("g1", "g2"):
                empty_group(client, group_id)
            with held("delete", emulator, monkeypatch) as waits:
                assert client.delete_topic("orders").error_code == 0
                assert waits.acquire(timeout=60)
                sharer = Sharer(client, "g2", "others").join()
            assert error_of_deletion(client, send_delete_groups(client, "g1")) == 0, "after what was held"
            assert sharer.beat().error_code == 0


def test_a_member_that_joins_while_offsets_are_altered_begins_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(config=CONFIG, topics={"orders": 1}) as emulator:
        with RawClient(emulator.bootstrap_servers) as admin, RawClient(emulator.bootstrap_servers) as client:
            set_group(client, "g", auto_offset_reset="earliest")
            sharer = Sharer(client, "g", "orders")
            sharer.put("a", "b", "c")
            row = {"partition_index": 0, "start_offset": 2}
            topics = ({"topic_name": "orders", "partitions": (row,)},)
            with held("initialize", emulator, monkeypatch) as waits:
                sent = admin.send("alter_share_group_offsets", 0, group_id="g", topics=topics)
                assert waits.acquire(timeout=60)
                assert sharer.beat().error_code == 0
                assert sharer.beat().error_code == 0
            assert admin.receive("alter_share_group_offsets", 0, sent).error_code == 0
            assert sharer.join().acquire() == [(2, 2, 1)]


@pytest.mark.parametrize("dies", [False, True])
def test_a_coordinator_resigns_while_it_deletes_offsets(dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(nodes=2, config=CONFIG, topics={"orders": 2}) as emulator:
        addresses = emulator.bootstrap_servers.split(",")
        emulator.move_leader("orders", 0, 1)
        emulator.move_coordinator(0, group="g")
        with RawClient(addresses[0]) as deleter, RawClient(addresses[1]) as client:
            empty_group(deleter)
            with held("delete", emulator, monkeypatch) as waits:
                sent = send_delete_offsets(deleter)
                assert waits.acquire(timeout=60)
                if dies:
                    emulator.crash_node(0)
                else:
                    emulator.move_coordinator(1, group="g")
                sharer = Sharer(client, "g", "orders").join()
            if not dies:
                assert receive_delete_offsets(deleter, sent).error_code == 16
            sharer.put("a")
            assert sharer.acquire() == [(0, 0, 1)]
            assert has_state(emulator, StateKey("g", sharer.topic_id, 1)), "it was initialized again, and not deleted"


def test_pruning_keeps_the_known_state_equal_to_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A snapshot of the old state, taken by pruning during an update, stood behind that update in the log."""
    monkeypatch.setattr(state_coordinator, "_PRUNED_EVERY", 2)
    config = BrokerConfig(properties=CONFIG.properties)
    with Emulator(config=config, topics={"orders": 1}, data_dir=tmp_path) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            set_group(client, "g", auto_offset_reset="earliest")
            sharer = Sharer(client, "g", "orders").join()
            sharer.put(*"abcdefghij")
            assert sharer.acquire() == [(0, 9, 1)]
            key = StateKey("g", sharer.topic_id, 0)
            log = emulator.cluster.share_states.partition(key).log
            for offset in (1, 2, 4, 5, 7, 8):
                assert sharer.acknowledge([(offset, offset, [ACCEPT])]) == 0
                assert run_in_loop(emulator, lambda: _known(emulator, key)) == run_in_loop(
                    emulator, lambda: _replayed(emulator, key)
                )
            assert log.log_start_offset > 0, "it was pruned"
    with Emulator(config=config, data_dir=tmp_path) as emulator, RawClient(emulator.bootstrap_servers) as client:
        again = Sharer(client, "g", "orders").join()
        assert [row[:2] for row in again.acquire()] == [(0, 0), (3, 3), (6, 6), (9, 9)]


def _known(emulator: Emulator, key: StateKey) -> Any:
    """Return the batches that the coordinator knows."""
    return emulator.cluster.share_states.shard(key).read(key, 0).batches


def _replayed(emulator: Emulator, key: StateKey) -> Any:
    """Return the batches that the next coordinator would know."""
    return StateShard(emulator.cluster, emulator.cluster.share_states.partition(key)).read(key, 0).batches


def _update(*batches: StateBatch) -> ShareStateUpdate:
    return ShareStateUpdate(0, NO_OFFSET, UNKNOWN_COUNT, batches)


def _state_to_write(emulator: Emulator) -> StateKey:
    """Return a share-partition that has state."""
    key = StateKey("g", emulator.cluster.topics["orders"].topic_id, 0)
    await_in_loop(emulator, emulator.cluster.share_states.initialize(key, 1, 0))
    return key


def test_a_large_write_to_a_partition_that_is_lost_meanwhile_is_refused() -> None:
    """The next coordinator has read the log by then, and would miss any later append."""
    with Emulator(config=CONFIG, topics={"orders": 1}) as emulator:
        key = _state_to_write(emulator)
        log = emulator.cluster.share_states.partition(key).log

        async def write_and_lose() -> None:
            shard = emulator.cluster.share_states.shard(key)
            end = log.log_end_offset
            large = asyncio.ensure_future(shard.write_large(key, 1, _update(StateBatch(0, 9, 2, 1))))
            await asyncio.sleep(0)
            emulator.cluster.nodes[0].share_coordinator.load_partition(emulator.cluster.share_states.partition(key))
            with pytest.raises(StateError) as refused:
                await large
            assert refused.value.error is ErrorCode.not_coordinator
            assert log.log_end_offset == end

        await_in_loop(emulator, write_and_lose())
        assert run_in_loop(emulator, lambda: _known(emulator, key)) == ()


def _shard(emulator: Emulator) -> GroupShard:
    shard = emulator.cluster.nodes[0].groups.shard("g")
    assert isinstance(shard, GroupShard)
    return shard


def _heartbeat(member_id: str, *topics: str) -> ShareHeartbeat:
    return ShareHeartbeat(member_id, 0, None, frozenset(topics), "client", "/host")


MANY_TOPICS = tuple(f"topic{number}" for number in range(2_000))


def test_offsets_that_are_altered_while_a_large_heartbeat_is_decided_are_kept() -> None:
    with Emulator(config=CONFIG, topics={"orders": 1}) as emulator:
        orders = emulator.cluster.topics["orders"]
        key = StateKey("g", orders.topic_id, 0)

        async def join_and_alter() -> ShareGroup:
            shares = _shard(emulator).share
            large = asyncio.ensure_future(shares.heartbeat("g", _heartbeat("large", "orders", *MANY_TOPICS)))
            await asyncio.sleep(0)
            await shares.alter_offsets("g", [AlteredOffset(orders, 0, 5)])
            assert not shares.groups["g"].members, "the large one came later"
            assert (await large).member_id == "large"
            return shares.groups["g"]

        group = await_in_loop(emulator, join_and_alter())
        assert list(group.members) == ["large"]
        assert group.initialized[orders.topic_id].partitions == {0}
        state = run_in_loop(emulator, lambda: emulator.cluster.share_states.shard(key).read(key, 0))
        assert state.start_offset == 5


def test_a_large_heartbeat_to_a_coordinator_that_is_lost_meanwhile_is_refused() -> None:
    with Emulator(config=CONFIG, topics={"orders": 1}) as emulator:

        async def join_and_lose() -> None:
            shard = _shard(emulator)
            end = shard.partition.log.log_end_offset
            large = asyncio.ensure_future(shard.share.heartbeat("g", _heartbeat("large", *MANY_TOPICS)))
            await asyncio.sleep(0)
            shard.close()
            with pytest.raises(RefusedError) as refused:
                await large
            assert refused.value.error is ErrorCode.not_coordinator
            assert shard.partition.log.log_end_offset == end

        await_in_loop(emulator, join_and_lose())
