"""`Outbox`: the setting by which the blocks of a pool put their records into the database, to be published after it."""

from __future__ import annotations

from dataclasses import dataclass

from dualwrite.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Let a block add its records to a table in its own commit, and the pool publish them exactly once right after it.

    One process of those that share a prefix publishes, in the background; with `publishes=False` this one never does.
    It learns at once of blocks of its own process, and of those of others within `poll_ms` milliseconds. See
    docs/pool.md.

    Raises ConfigError.
    """

    publishes: bool = True
    poll_ms: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.publishes, bool):
            raise ConfigError(f"publishes takes True or False, not {self.publishes!r}")
        if not isinstance(self.poll_ms, int) or isinstance(self.poll_ms, bool) or self.poll_ms < 1:
            raise ConfigError(f"poll_ms takes a whole number of at least 1, not {self.poll_ms!r}")
