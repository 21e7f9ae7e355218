"""Why decided records could not be published again, were a broker to abort their transaction. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from dualwrite.client.admin.results import TopicDescription

OR_OUTBOX: Final = ", or let a pool with delivery=Outbox() publish the block, which keeps its records in the database"


class Obstacle(NamedTuple):
    """Why aborted records could not be published again, and how to change that."""

    where: str
    why: str
    remedy: str


def obstacle_of(topic: str, found: TopicDescription, *, may_store: bool = True) -> Obstacle | None:
    """Return the obstacle to a repair of records in a topic; None if none is known.

    `may_store`: whether the caller could publish from its database instead, as a dual write can.
    """
    where = f"in topic {topic!r}"
    outbox = OR_OUTBOX if may_store else ""
    if found.is_readable is False:
        return Obstacle(
            where,
            "this client has no READ on it, so it could not read the records to publish them again",
            f"grant READ on the topic to this client{outbox}",
        )
    if found.is_compacted:
        return Obstacle(
            where,
            f"its cleanup.policy is {found.cleanup_policy!r}, and compaction removes the records of aborted "
            "transactions",
            f"take 'compact' out of its cleanup.policy{outbox}",
        )
    return None
