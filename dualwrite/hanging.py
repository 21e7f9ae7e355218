"""The commands that end a transaction that hangs, for the texts of errors and of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
