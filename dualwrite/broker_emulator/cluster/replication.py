"""Replication as far as clients can see it: acks=all waits for the high watermark, an election answers who waits.

Followers are not there as logs of their own. What they have of a partition is what is below its high watermark, so
a follower that becomes leader begins with exactly that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.partition_log import wait_for_advance
from dualwrite.broker_emulator.no_error import NO_ERROR

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Partition

REQUEST_TIMEOUT_S = 30.0
"""How long brokers wait for replication of what they write themselves (markers, coordinators' records)."""


async def wait_until_replicated(
    partition: Partition, offset: int, leader_epoch: int, timeout_s: float = REQUEST_TIMEOUT_S
) -> ErrorCode:
    """Wait until everything below `offset` is replicated; it was appended under `leader_epoch`.

    NONE; 6 when another leader was elected, who may or may not have it; 7 after `timeout_s` of the event loop.
    """
    log = partition.log
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while log.leader_epoch == leader_epoch:
        if log.high_watermark >= offset:
            return NO_ERROR
        if asyncio.get_running_loop().time() >= deadline_s:
            return ErrorCode.request_timed_out
        await wait_for_advance([log], deadline_s)
    return ErrorCode.not_leader_or_follower
