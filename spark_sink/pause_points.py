"""Named points of a batch at which a test can pause, fail or kill the sink."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class PausePoint(StrEnum):
    """The pause points, in the order in which a batch reaches them."""

    # PLAN, in the planner's process
    AFTER_GENERATION = "after-generation"  # older attempts are condemned, and no transaction is completed yet
    AFTER_PLAN = "after-plan"
    # WRITE, in a task worker
    AFTER_LEASE = "after-lease"  # the attempt is OPEN, and has sent nothing to Kafka
    AFTER_INIT = "after-init"
    AFTER_SEND = "after-send"  # once per Arrow batch
    AFTER_FILE = "after-file"  # the data file for a Delta or Iceberg table is complete, but in no row and no table yet
    AFTER_PREPARE = "after-prepare"
    BEFORE_PREPARED = "before-prepared"  # inside the transaction of a database, or before the record is sent
    AFTER_PREPARED = "after-prepared"
    # COMMIT, in the committer's process
    COMMIT_START = "commit-start"
    INSIDE_DECISION = "inside-decision"  # in its transaction, before the last statement; or before its record is sent
    AFTER_DECISION = "after-decision"
    # ABORT
    AFTER_CONDEMNATION = "after-condemnation"
    # FINISH, in any process
    AFTER_TAKE_OVER = "after-take-over"  # the ids are taken over, and the rows are not read again yet
    BEFORE_COMPLETION = "before-completion"  # the rows were read again
    BEFORE_REPAIR = "before-repair"  # the log has shown an abort; called by the Kafka port, for each
    BEFORE_REPLACEMENT = "before-replacement"  # published again and prepared; the row has the old pair
    AFTER_REPLACEMENT = "after-replacement"  # the row has the new pair, which is not committed
    AMONG_COMPLETIONS = "among-completions"  # once per completed transaction; called by the Kafka port
    BEFORE_STATUSES = "before-statuses"  # Kafka has responded, and the store has not recorded it
    BEFORE_ADDITION = "before-addition"  # the table was read, and lacks decided files
    AFTER_ADDITION = "after-addition"  # they were added, or another process was faster
    BEFORE_FORGETTING = "before-forgetting"  # the table has them on disk, and the store still owes them
    AFTER_FINISH = "after-finish"


Pause = Callable[[PausePoint], None]
