"""Named instants of a dual write at which a test, or the demo, can stop, fail or kill it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class PausePoint(StrEnum):
    """In the order in which a dual write meets them; the first four only where a producer takes an id over."""

    AFTER_LOCK = "after-lock"
    AFTER_INIT = "after-init"  # the predecessor is fenced, its transaction not yet completed
    AFTER_COMPLETION = "after-completion"  # that transaction is completed, and the id may be another taker's too
    AFTER_TAKEOVER = "after-takeover"
    AFTER_BEGIN = "after-begin"
    AFTER_SEND = "after-send"  # once per record
    AFTER_PREPARE = "after-prepare"
    AFTER_STATE_WRITE = "after-state-write"
    BEFORE_DATABASE_COMMIT = "before-database-commit"
    AFTER_DATABASE_COMMIT = "after-database-commit"
    AFTER_KAFKA_COMMIT = "after-kafka-commit"


PauseHook = Callable[[PausePoint], None]
