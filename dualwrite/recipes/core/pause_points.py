"""Named points of a dual write at which a test or the demo can pause it, make it fail, or kill the process."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class PausePoint(StrEnum):
    """The points in the order in which a dual write reaches them; the first four only if it takes its id over."""

    AFTER_LOCK = "after-lock"
    AFTER_INIT = "after-init"  # the predecessor is fenced, its transaction not yet completed
    AFTER_COMPLETION = "after-completion"  # that transaction is completed; another process may have taken the id over
    AFTER_TAKEOVER = "after-takeover"
    AFTER_BEGIN = "after-begin"
    AFTER_SEND = "after-send"  # once per record
    AFTER_PREPARE = "after-prepare"
    AFTER_STATE_WRITE = "after-state-write"
    BEFORE_DATABASE_COMMIT = "before-database-commit"
    AFTER_DATABASE_COMMIT = "after-database-commit"
    AFTER_KAFKA_COMMIT = "after-kafka-commit"


PauseHook = Callable[[PausePoint], None]
