"""The status of a pool of transactional ids, for users and for telemetry."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dualwrite.errors import DualWriteError
from dualwrite.guarded import guarded
from dualwrite.recipes.core.dual_write import say_of_block
from dualwrite.recipes.core.refused import RefusedBlock


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The numbers of a pool: current ones, and totals since it was created."""

    max_writers: int
    in_use: int
    """Slots that carry a dual write now, or are about to."""
    idle: int
    """Slots that are leased and ready."""
    waiting: int
    """Blocks that wait for a slot."""
    set_aside: tuple[str, ...]
    """Transactional ids in which a transaction may be open; they are resolved before they are used again."""
    unrecovered: tuple[str, ...]
    """Transactional ids of dead processes, as the background has last seen them, that are not recovered yet."""
    leased_total: int
    """Leases taken, of slots that were free or new."""
    lost_total: int
    """Leases of this pool that another process took over, or that were deleted."""
    moved_total: int
    """Dual writes that lost their slot before the decision and went on under another one."""
    recovered_total: int
    """Slots of this process and of dead processes that were resolved."""
    timeouts_total: int
    """How many blocks waited in vain for an id."""
    background_failures_total: int
    last_background_error: str | None
    """The last error of the background; None again after a round without errors."""
    is_diverted: bool = False
    """Whether blocks go to the outbox, as this process has last seen it: because Kafka is or was away, or always."""
    refused: tuple[RefusedBlock, ...] = ()
    """Owed records, and blocks of the outbox, that Kafka refuses for good, as far as this process has tried: those
    behind them wait for a person."""
    refusal: str | None = None
    """Why the last block, or the background, was refused, if others are too until the cause is removed: the name that
    `dualwrite doctor` has for it, and the error. None again after a block with records was written, or the background
    has tried what blocks need, and was not refused."""
    kafka_away_since_s: float | None = None
    """Since when no broker can be reached, in seconds since 1970; None if Kafka is not known to be away."""
    kafka_problem: str | None = None
    """The problem of the last attempt to reach Kafka; None if Kafka is not known to be away."""
    no_manifest_total: int = 0
    """Dual writes that went on without a manifest, so that the log cannot tell how they ended."""
    unproven_total: int = 0
    """Transactions whose end nothing can prove any more: an ERROR in the log names each."""
    publishes_outbox: bool = False
    """Whether this process publishes the outbox of the prefix."""
    outbox_blocks: int = 0
    """Blocks that wait in the outbox, as last queried: while it cannot be published, or another process does that."""

    needs_kafka: bool = True
    """Whether blocks are refused while Kafka is away; they go to an outbox otherwise."""

    @property
    def problem(self) -> str | None:
        """Why blocks are refused now: `refusal`, else `kafka_problem`; None while they are not. For readiness."""
        return self.refusal or (self.kafka_problem if self.needs_kafka else None)


@dataclass(slots=True)
class Counts:
    """The totals since a pool was created."""

    leased: int = 0
    lost: int = 0
    moved: int = 0
    recovered: int = 0
    timeouts: int = 0
    background_failures: int = 0
    last_background_error: str | None = None
    kafka_failed: bool = False
    """Whether the last error of the background was one of Kafka."""
    refusal: str | None = None

    def judge(self, error: DualWriteError) -> None:
        """Note the error of a block or of the background, if it concerns others until its cause is removed."""
        from dualwrite.recipes.core.judge import refusal_of  # a writer that is refused nothing does not load it

        found = refusal_of(error)
        if found.stops_writers:
            self.refusal = f"{found.name}: {described(error)}"


def log_failure(log: logging.Logger, what: str, error: Exception, of_leases: tuple[type[Exception], ...]) -> None:
    """Log an error of the background, which tries again, and has no producer to close and no block to repeat."""
    say_of_block(error, repeat="it is tried again")
    _warn(log, what, error, is_expected=isinstance(error, (*of_leases, DualWriteError)))


@guarded
def _warn(log: logging.Logger, what: str, error: Exception, *, is_expected: bool) -> None:
    said = str(error).partition("\n")[0]
    log.warning("%s failed and will be retried: %s", what, said, exc_info=None if is_expected else error)


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
