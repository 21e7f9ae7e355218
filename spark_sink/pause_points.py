"""Named instants of a batch at which a test can stop, fail or kill the sink."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class PausePoint(StrEnum):
    """In the order in which a batch meets them."""

    # PLAN, in the planner's process
    AFTER_GENERATION = "after-generation"  # older attempts are condemned, and none has been ended yet
    AFTER_PLAN = "after-plan"
    # WRITE, in a task worker
    AFTER_LEASE = "after-lease"  # the attempt is OPEN, Kafka has not heard of it
    AFTER_INIT = "after-init"
    AFTER_SEND = "after-send"  # once per Arrow batch
    AFTER_PREPARE = "after-prepare"
    BEFORE_PREPARED = "before-prepared"  # inside the database transaction, before its COMMIT
    AFTER_PREPARED = "after-prepared"
    # COMMIT, in the committer's process
    COMMIT_START = "commit-start"
    INSIDE_DECISION = "inside-decision"  # in its transaction, before the last statement
    AFTER_DECISION = "after-decision"
    # ABORT
    AFTER_CONDEMNATION = "after-condemnation"
    # FINISH, wherever it runs
    AFTER_TAKE_OVER = "after-take-over"  # ids are taken over, the rows are not read again yet
    BEFORE_COMPLETION = "before-completion"  # the rows were read again
    AMONG_COMPLETIONS = "among-completions"  # once per transaction that was ended; called by the Kafka side
    BEFORE_STATUSES = "before-statuses"  # Kafka has answered, the store does not know it
    AFTER_FINISH = "after-finish"


Pause = Callable[[PausePoint], None]
