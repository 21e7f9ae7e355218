"""The commands that end a transaction that hangs, for the texts of errors and of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dualwrite.client.admin.results import HangingTransaction
from dualwrite.prepared_state import PreparedTxnState


class EndByHand(NamedTuple):
    """The commands by which an operator ends a transaction that hangs."""

    commit: str
    abort: str


def end_by_hand(hanging: PreparedTxnState, starts: Mapping[Any, int | None]) -> EndByHand:
    """Return the commands that end a transaction where it hangs; `starts`: its first offset by topic and partition."""
    commits = [f"commit --topic {topic} --partition {index} --prepared-state {hanging}" for topic, index in starts]
    aborts = [
        f"abort --topic {topic} --partition {index} --start-offset {start}" for (topic, index), start in starts.items()
    ]
    return EndByHand(*("; ".join(f"`dualwrite transactions {each}`" for each in ends) for ends in (commits, aborts)))


def pair_of(found: HangingTransaction) -> PreparedTxnState:
    """Return the producer id and epoch of a transaction that hangs."""
    return PreparedTxnState.of(producer_id=found.producer_id, producer_epoch=found.producer_epoch)


def next_step(found: HangingTransaction, *, is_decided: bool | None = None) -> str:
    """Return the commands that end a transaction that was found hanging, and when each is right.

    `is_decided`: whether the row of its id names it (True), or none or an earlier one (False), and nothing says that
    the row is of another cluster; None if neither is known.
    """
    topic, partition = found.topic_partition
    pair = pair_of(found)
    ends = end_by_hand(pair, {found.topic_partition: found.start_offset})
    since = datetime.fromtimestamp(found.last_timestamp_ms / 1000, UTC)
    whose = "an unknown id" if found.transactional_id is None else f"transactional id {found.transactional_id!r}"
    step = f"If a database has decided it, as the error of its dual writer says: {ends.commit}; else: {ends.abort}"
    if found.transactional_id is None:
        step = (
            "Kafka hides an id from clients without DESCRIBE on it, and then it may be in use: look again with "
            f"DESCRIBE on all transactional ids. Only if none has it: {step[0].lower()}{step[1:]}"
        )
    if is_decided:
        step = (
            f"The row of its id names it, so the database has decided it, unless the row is of another cluster: commit "
            f"it: {ends.commit}; only if its loss was acknowledged, and its records were sent again: {ends.abort}"
        )
    elif is_decided is False:
        step = (
            "The row of its id names an earlier transaction, or none, so this database had not decided it when the row "
            f"was read: if a second look says the same, abort it: {ends.abort}; unless another database decides the "
            f"id, and has decided it, as the error of its dual writer says: {ends.commit}"
        )
    return f"{topic}-{partition}: {pair} of {whose} has written nothing since {since:%Y-%m-%d %H:%M:%S} UTC. {step}"
