"""Requests for the offsets of groups."""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator import Emulator, PausePoint
from tests.emulator.api.raw_client import RawClient


def commit(
    client: RawClient, group_id: str, offset: int, *, topic: str = "t", metadata: str = "", **values: Any
) -> int:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}
    response = client.call(
        "offset_commit",
        9,
        group_id=group_id,
        topics=({"name": topic, "partitions": (partition,)},),
        **{"member_id": "", **values},
    )
    return int(response.topics[0].partitions[0].error_code)


def settle(emulator: Emulator, client: RawClient, producer: Any, *, commit: bool, version: int = 5) -> Any:
    """End the transaction and wait until its markers are written."""
    hold = emulator.hold(PausePoint.AFTER_COMPLETE_APPEND)
    ended = client.end_txn("x", producer, commit=commit, version=version)
    assert ended.error_code == 0
    hold.wait_reached()
    hold.release()
    return ended
