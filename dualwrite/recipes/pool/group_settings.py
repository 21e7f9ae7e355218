"""`GroupCommit`: the setting by which a pool commits blocks in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dualwrite.errors import ConfigError

# PostgreSQL caches up to 64 subtransactions of a transaction in shared memory; beyond that, taking a snapshot becomes
# slower for every session.
_MOST_BLOCKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """Let the blocks of a pool that run at about the same time share one commit on each side (docs/pool.md).

    A group takes at most `max_blocks` blocks. At most `max_groups` groups are in progress at a time, apart from those
    whose running block has taken `slow_block_ms`: they take no further block and do not count, so that others need not
    wait, until there are as many groups as the pool has writers. Once a block has run for `max_block_ms`, the blocks
    that have ended before it in its group wait no longer: the group is given up, and all of its blocks raise
    GroupGivenUpError.

    Raises ConfigError.
    """

    max_blocks: int = 32
    max_groups: int = 2
    slow_block_ms: int = 200
    max_block_ms: int = 10_000

    def __post_init__(self) -> None:
        _assert_within("max_blocks", self.max_blocks, 1, _MOST_BLOCKS)
        _assert_within("max_groups", self.max_groups, 1, None)
        _assert_within("slow_block_ms", self.slow_block_ms, 1, None)
        _assert_within("max_block_ms", self.max_block_ms, 1, None)


def _assert_within(name: str, value: Any, least: int, most: int | None) -> None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or value < least or (most is not None and value > most):
        range_ = f"{least} to {most}" if most is not None else f"at least {least}"
        raise ConfigError(f"{name} takes a whole number, {range_}, not {value!r}")
