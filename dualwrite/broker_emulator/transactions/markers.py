"""What a partition leader's answer to a transaction marker makes the coordinator do (WriteTxnMarkers)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR


class MarkerReaction(Enum):
    """What happens to one partition of a transaction that is being ended."""

    ACKNOWLEDGED = auto()  # the marker is written: the partition leaves the transaction
    DROPPED = auto()  # the partition can never take a marker: it leaves the transaction as well
    RETRY = auto()
    CANCEL = auto()  # a newer coordinator or producer is at work: all markers stop, the id stays in its Prepare state


RETRY: Final = MarkerReaction.RETRY
CANCEL: Final = MarkerReaction.CANCEL
"""Under names that are quick to read (see `error_codes.py`)."""

REACTIONS: Mapping[ErrorCode | None, MarkerReaction] = {
    NO_ERROR: MarkerReaction.ACKNOWLEDGED,
    ErrorCode.unknown_topic_or_partition: MarkerReaction.RETRY,
    ErrorCode.not_leader_or_follower: MarkerReaction.RETRY,
    ErrorCode.request_timed_out: MarkerReaction.RETRY,
    ErrorCode.not_enough_replicas: MarkerReaction.RETRY,
    ErrorCode.not_enough_replicas_after_append: MarkerReaction.RETRY,
    ErrorCode.kafka_storage_error: MarkerReaction.RETRY,
    ErrorCode.invalid_producer_epoch: MarkerReaction.CANCEL,
    ErrorCode.transaction_coordinator_fenced: MarkerReaction.CANCEL,
    ErrorCode.unsupported_for_message_format: MarkerReaction.DROPPED,
    ErrorCode.unsupported_version: MarkerReaction.DROPPED,
    None: MarkerReaction.DROPPED,  # the topic was deleted: there is no leader to ask
}


def reaction_to(answer: ErrorCode | None) -> MarkerReaction:
    """The reaction to a leader's answer. Raises RuntimeError on one that no leader may give."""
    reaction = REACTIONS.get(answer)
    if reaction is None:
        raise RuntimeError(f"a partition leader answered a transaction marker with {answer!r}")
    return reaction
