"""`Direct` and `Outbox`: the two ways in which the records of a block reach Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from dualwrite.errors import ConfigError

__all__ = ["Delivery", "Direct", "Outbox"]

WhenKafkaIsAway = Literal["refuse", "store"]

_MAX_STORED_BYTES: Final = 268_435_456
_MAX_STORED_AGE_MS: Final = 86_400_000
_POLL_MS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """Let a block publish its records itself: it ends when both sides have committed.

    While Kafka is away blocks are refused; with `when_kafka_is_away="store"`, for a pool only, the database stores
    their records beside their changes, and the background of the pool publishes them later, in the order of the
    commits. Then `max_stored_bytes` and `max_stored_age_ms`, the age of the oldest stored block, limit the storage of
    the pool: blocks beyond them are refused with StoreFullError.

    Raises ConfigError.
    """

    when_kafka_is_away: WhenKafkaIsAway = "refuse"
    max_stored_bytes: int = _MAX_STORED_BYTES
    max_stored_age_ms: int = _MAX_STORED_AGE_MS

    def __post_init__(self) -> None:
        if self.when_kafka_is_away not in get_args(WhenKafkaIsAway):
            raise ConfigError(f"when_kafka_is_away takes 'refuse' or 'store', not {self.when_kafka_is_away!r}")
        _check_limits(self.max_stored_bytes, self.max_stored_age_ms)
        if self.when_kafka_is_away == "refuse":
            _refuse_without_effect(
                'when_kafka_is_away="store"',
                max_stored_bytes=self.max_stored_bytes != _MAX_STORED_BYTES,
                max_stored_age_ms=self.max_stored_age_ms != _MAX_STORED_AGE_MS,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Let a block add its records to a table in its own commit, and the pool publish them exactly once right after it.

    One process of those that share a prefix publishes, in the background; with `publishes=False` this one never does.
    It learns at once of blocks of its own process, and within `poll_ms` milliseconds of those of others. After a batch
    of blocks it lets others wait for `linger_ms` milliseconds, so that the next batch has more: under load that leaves
    more of the machine to the blocks, and their records can be read later. `max_stored_bytes` and `max_stored_age_ms`,
    the age of the oldest waiting block, limit the waiting blocks: at a limit blocks are refused with StoreFullError.

    Raises ConfigError.
    """

    publishes: bool = True
    poll_ms: int = _POLL_MS
    linger_ms: int = 0
    max_stored_bytes: int = _MAX_STORED_BYTES
    max_stored_age_ms: int = _MAX_STORED_AGE_MS

    def __post_init__(self) -> None:
        if not isinstance(self.publishes, bool):
            raise ConfigError(f"publishes takes True or False, not {self.publishes!r}")
        _check_whole("poll_ms", self.poll_ms, least=1)
        _check_whole("linger_ms", self.linger_ms, least=0)
        _check_limits(self.max_stored_bytes, self.max_stored_age_ms)
        if not self.publishes:
            _refuse_without_effect("publishes=True", poll_ms=self.poll_ms != _POLL_MS, linger_ms=self.linger_ms != 0)


Delivery = Direct | Outbox


def _check_limits(max_stored_bytes: object, max_stored_age_ms: object) -> None:
    _check_whole("max_stored_bytes", max_stored_bytes, least=1)
    _check_whole("max_stored_age_ms", max_stored_age_ms, least=1)


def _check_whole(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} takes a whole number of at least {least}, not {value!r}")


def _refuse_without_effect(needed: str, **is_given: bool) -> None:
    """Raise ConfigError if a setting was given that has an effect only with `needed`."""
    for name, given in is_given.items():
        if given:
            raise ConfigError(f"{name} has no effect without {needed}: leave it out")
