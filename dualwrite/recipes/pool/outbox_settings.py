"""`Outbox`: the setting by which the blocks of a pool put their records into the database, to be published after it."""

from __future__ import annotations

from dataclasses import dataclass

from dualwrite.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Let a block add its records to a table in its own commit, and the pool publish them exactly once right after it.

    One process of those that share a prefix publishes, in the background; with `publishes=False` this one never does.
    It learns at once of blocks of its own process, and of those of others within `poll_ms` milliseconds. After a batch
    of blocks it lets others wait for `linger_ms` milliseconds, so that the next one has more: under load that leaves
    more of the machine to the blocks, and their records can be read later. See docs/pool.md.

    Raises ConfigError.
    """

    publishes: bool = True
    poll_ms: int = 20
    linger_ms: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.publishes, bool):
            raise ConfigError(f"publishes takes True or False, not {self.publishes!r}")
        _assert_whole("poll_ms", self.poll_ms, least=1)
        _assert_whole("linger_ms", self.linger_ms, least=0)


def _assert_whole(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} takes a whole number of at least {least}, not {value!r}")
