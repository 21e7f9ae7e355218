"""The blocks of a pool with an outbox: their records go into the database with their changes, by the same commit.

So a block sends nothing to Kafka and takes no lock of ours, and several commit at once, as they would without
dualwrite. `outbox_publisher.py` publishes the blocks by dual writes of its own, which delete them.

The outcome of a commit whose response is lost is read from the outbox, once its transaction is no longer in progress,
which another transaction sees by inserting the same key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from dualwrite.config import ProducerConfig
from dualwrite.delivery import Outbox
from dualwrite.errors import IllegalStateError, OutcomeUnknown, StateRowError, StoreFullError
from dualwrite.guarded import pass_on_signal
from dualwrite.outcome import Outcome
from dualwrite.partitioners import name_of
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.dual_write import DualWriteProgress, roll_back_database
from dualwrite.recipes.core.leases import outbox_id_of, outbox_prefix_of
from dualwrite.recipes.core.metrics import Counted, count
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.core.record_block import encode
from dualwrite.recipes.core.store import (
    Backlog,
    DatabaseTransaction,
    Diversion,
    OutboxDatabase,
    OutboxTransaction,
    StoredBlock,
    Way,
)
from dualwrite.recipes.core.stored_blocks import assert_publishable
from dualwrite.recipes.core.telemetry import telemetry_of
from dualwrite.recipes.core.waiting import backoff_s

_log = logging.getLogger(__name__)

_MOST_SECONDS_TO_WAIT: Final = 1.0
"""How long a block waits for the end of a diversion, if the publisher asks for it. Nothing relies on it."""

_SECONDS_BETWEEN_LOOKS: Final = 0.005


class OutboxWrites:
    """Adds the records of blocks to the outbox of one prefix, and resolves lost commits."""

    def __init__(
        self,
        prefix: str,
        *,
        database: OutboxDatabase,
        limits: Outbox,
        config: ProducerConfig,
        lock_timeout_ms: int | None,
        resolve_timeout_ms: int,
        sleep: Callable[[float], Awaitable[None]],
        pause: PauseHook | None,
        diverts: bool = False,
    ) -> None:
        """`diverts`: blocks go to the outbox only while Kafka is away, and until it is empty again."""
        self.transactional_id: Final = outbox_id_of(prefix)
        self.diverts: Final = diverts
        """Whether blocks of this process go to the outbox only during a diversion; else all of them do."""
        self.diversion: Final = outbox_prefix_of(prefix)
        """The name of the pool's diversion."""
        self.is_diverted = not diverts
        """Whether blocks go to the outbox, as this process has last seen it."""
        self.diversions = 0
        """Changes with each block that goes there, so that an older view does not replace a newer one."""
        self.database: Final = database
        self._limits = limits
        self._max_record_bytes = config.max_request_size
        self._partitioner = name_of(config.partitioner)
        self._lock_timeout_ms = lock_timeout_ms
        self._resolve_timeout_ms = resolve_timeout_ms
        self._sleep = sleep
        self._telemetry = telemetry_of(self.transactional_id, pause)
        self._backlog: Backlog | None = None
        self._waited_for = 0
        """The number under which blocks have waited in vain; none of this process waits for it again."""
        self.on_added: Callable[[], None] = _nothing
        """Called when a block is committed, from any thread."""
        self.on_unresolved: Callable[[], None] = _nothing
        """Called when a block leaves its outcome to the background, from any thread."""
        self._unresolved: list[DualWriteProgress] = []
        """Blocks whose commit got no response, until their outcome is known."""

    @property
    def backlog(self) -> Backlog | None:
        """The backlog as last queried; None once all of it was published."""
        return self._backlog

    @backlog.setter
    def backlog(self, found: Backlog | None) -> None:
        self._backlog = found
        self._telemetry.waits(found.since_ms if found is not None and found.blocks else None)

    async def prepare(self) -> None:
        """Create the table and the state row, before the first block."""
        await self.database.ensure_row(self.transactional_id)
        await self.database.prepare_outbox()
        if self.diverts:
            await self.database.prepare_diversion(self.diversion)
            if await self.database.has_waiting(self.transactional_id):  # as after a change of `delivery`
                await self._divert_all()

    # ---- the diversion ------------------------------------------------------------------------------------------

    async def follows_diverted(self, write: DualWriteProgress) -> bool:
        """Return whether blocks go to the outbox now, for a block that has locked all its rows.

        Wait for the end of the diversion, for a moment, if the publisher asks for it: as long as blocks add records, it
        finds some at each look.
        """
        way = asked = await self._way_of(write)
        ends_s = time.monotonic() + _MOST_SECONDS_TO_WAIT
        while way.ending and way.ending == asked.ending != self._waited_for:
            if time.monotonic() >= ends_s:
                self._waited_for = way.ending
                break
            await self._sleep(_SECONDS_BETWEEN_LOOKS)
            way = await self._way_of(write)
        return way.is_diverted

    async def _way_of(self, write: DualWriteProgress) -> Way:
        """Return where blocks go now. Where the block's transaction keeps a snapshot, another one looks."""
        block: Any = write.database
        before = self.diversions
        way = await block.diversion(self.diversion).way_now()
        return await self._look_aside() if way is None else self._noted(way, before)

    async def _divert_all(self) -> None:
        async def begin(database: OutboxTransaction) -> None:
            await database.diversion(self.diversion, self._lock_timeout_ms).begin(int(time.time() * 1000))
            await database.commit()

        await in_own_transaction(self.database.begin, begin)

    async def look_at_diversion(self) -> bool:
        """Return whether blocks go to the outbox now, as a separate transaction sees it."""
        return not self.diverts or (await self._look_aside()).is_diverted

    async def look_at_others(self) -> bool:
        """Return whether there is a diversion, which blocks of this process do not ask for."""
        try:
            return (await in_own_transaction(self.database.begin, self._look)).is_diverted
        except StateRowError:  # no process of the pool diverts blocks
            return False

    async def _look_aside(self) -> Way:
        before = self.diversions
        return self._noted(await in_own_transaction(self.database.begin, self._look), before)

    async def _look(self, database: OutboxTransaction) -> Way:
        return await database.diversion(self.diversion).way()

    def _noted(self, way: Way, before: int) -> Way:
        self.note_diverted(way.is_diverted, before)
        return way

    def note_diverted(self, found: bool, before: int) -> bool:
        """Note whether blocks go to the outbox, as seen since `diversions` had the value `before`. Return `found`."""
        if found or before == self.diversions:
            self.is_diverted = found
        return found

    async def divert(self, write: DualWriteProgress, why: BaseException | None) -> None:
        """Add the records of a block to the outbox, and let the later blocks of the pool follow it there.

        Raises StoreFullError if the backlog exceeds a limit, and RowLockTimeoutError if another process has frozen as
        it began or ended the diversion.
        """
        self.assert_not_full()
        for record in write.records.records:
            record.fate = None  # it was that of a copy which Kafka aborts
        block: Any = write.database
        diversion: Diversion = block.diversion(self.diversion, self._lock_timeout_ms)
        now_ms = int(time.time() * 1000)
        # the row is changed by the first block only, and held by the others at the same time
        is_first = not self.is_diverted and await diversion.begin(now_ms)
        if not is_first and not await diversion.hold():
            is_first = await diversion.begin(now_ms)
        if is_first:
            _log.warning(
                "outbox %s: blocks add their records to it from now on (%s)",
                self.transactional_id,
                "Kafka is away" if why is None else first_line(why),
            )
        await self.add(write)
        self.diversions += 1
        self.is_diverted = True

    # ---- blocks -------------------------------------------------------------------------------------------------

    def assert_not_full(self) -> None:
        backlog = self._backlog
        if backlog is None:
            return
        age_ms = int(time.time() * 1000) - backlog.since_ms if backlog.blocks else 0
        if backlog.size_bytes > self._limits.max_stored_bytes:
            limit = f"more than max_stored_bytes={self._limits.max_stored_bytes}"
        elif age_ms > self._limits.max_stored_age_ms:
            limit = f"longer than max_stored_age_ms={self._limits.max_stored_age_ms}"
        else:
            return
        raise StoreFullError(
            f"the outbox {self.transactional_id!r} holds {backlog.blocks} blocks ({backlog.size_bytes} bytes, the "
            f"oldest for {age_ms} ms) that are not published yet: {limit}; neither side was changed: repeat the block "
            "when they are (pool.status and the log show whether Kafka is away, refuses a record, or the publisher "
            "lags), or raise the limit"
        )

    async def add(self, write: DualWriteProgress) -> None:
        """Add the records of a block, as its last statement before COMMIT."""
        if write.records.has_offsets:
            raise IllegalStateError(
                "consumed offsets cannot go into an outbox, because their group could go on without the records; "
                "neither side was changed: keep the offsets in the database (OffsetsInDatabase), or use a writer "
                "with delivery=Direct()"
            )
        records = write.records.records
        assert_publishable(records, self._max_record_bytes)
        write.transactional_id = self.transactional_id
        block: Any = write.database
        write.added = await block.add_to_outbox(self.transactional_id, encode(records, self._partitioner))
        self._telemetry.reach(PausePoint.AFTER_STATE_WRITE)
        self._telemetry.reach(PausePoint.BEFORE_DATABASE_COMMIT)

    async def decide(self, write: DualWriteProgress) -> None:
        try:
            await write.database.commit()
        except BaseException as error:
            await self._after_failed_commit(write, error)
        else:
            write.outcome = Outcome.STORED
            self.diversions += 1
            self.is_diverted = True
            self._telemetry.stored(int(time.time() * 1000))
            self._telemetry.reach(PausePoint.AFTER_DATABASE_COMMIT)
        self.on_added()

    # ---- commits without a response -------------------------------------------------------------------------

    async def _after_failed_commit(self, write: DualWriteProgress, error: BaseException) -> None:
        """Roll back if COMMIT was not sent; else resolve the outcome, which only the database shows."""
        if not write.database.commit_was_sent:
            await roll_back_database(write)
            raise error
        self._unresolved.append(write)  # for the background, if this is interrupted
        try:
            await write.uninterrupted(write.database.rollback())
            if not isinstance(error, Exception):
                raise error  # querying the database may take long
            pass_on_signal(error)  # the same
            await self._resolve_in_time(write)
        except OutcomeUnknown as unknown:
            raise unknown from error
        finally:
            if write.outcome is None:
                self.on_unresolved()
        if write.outcome is Outcome.ROLLED_BACK:
            raise error
        what = "outbox %s: a block is committed, although its commit raised"
        _log.warning(what, self.transactional_id, exc_info=error)

    async def _resolve_in_time(self, write: DualWriteProgress) -> None:
        """Resolve the outcome. Raises OutcomeUnknown if that takes too long, and leaves it to the background."""
        deadline_s = time.monotonic() + self._resolve_timeout_ms / 1000
        failures = 0
        while True:
            try:
                why = "its database transaction has not ended"
                if await self.resolve(write):
                    return
            except StateRowError as error:
                raise self._outcome_unknown(str(error)) from error
            except Exception as error:
                pass_on_signal(error)
                why = first_line(error)
            failures += 1
            pause_s = backoff_s(failures)
            if time.monotonic() + pause_s >= deadline_s:
                raise self._outcome_unknown(f"{why}; the pool keeps querying in the background")
            count(Counted.RETRIES)
            await self._sleep(pause_s)

    async def resolve(self, write: DualWriteProgress) -> bool:
        """Query once how the commit of a block has ended. Return whether that is known, and noted in `write`.

        The row is locked meanwhile, so that no publisher can move the block, and no replica responds. The row does not
        show the block, so a standby that takes over without the block has the same row: the evidence was made durable
        only if the lock is still there afterwards. Raises the database's errors, RowLockTimeoutError, NotDurableError,
        and StateRowError if the outcome can no longer be known.
        """
        added = write.added
        assert added is not None, "it was added before COMMIT was sent"
        try:
            committed = await in_own_transaction(
                self.database.begin, partial(self._was_committed, added), write.uninterrupted
            )
            if committed is None:
                return False
        except StateRowError:
            self._forget(write)
            raise
        write.outcome = Outcome.STORED if committed else Outcome.ROLLED_BACK
        self._forget(write)
        count(Counted.RECOVERED, outcome=write.outcome)
        _log.info("outbox %s: the lost commit of a block was %s", self.transactional_id, write.outcome)
        return True

    async def _was_committed(self, added: StoredBlock, database: DatabaseTransaction) -> bool | None:
        row = await database.lock(self.transactional_id, timeout_ms=self._resolve_timeout_ms)
        outbox = database.stored_blocks(self.transactional_id)
        committed = await outbox.was_committed(self.transactional_id, added)
        if committed is not None:
            await self.database.make_durable(self.transactional_id, row, timeout_ms=self._resolve_timeout_ms)
            await database.read(self.transactional_id)  # fails if a standby has taken over since the lock
        return committed

    def _forget(self, write: DualWriteProgress) -> None:
        with suppress(ValueError):  # the block and the background may resolve it at the same time
            self._unresolved.remove(write)

    @property
    def has_unresolved(self) -> bool:
        return bool(self._unresolved)

    async def resolve_lost(self) -> Exception | None:
        """Resolve the blocks left to the background. Return an error that the next attempt may not meet."""
        failure: Exception | None = None
        for write in list(self._unresolved):
            try:
                await self.resolve(write)
            except StateRowError as error:
                _log.error("outbox %s: %s", self.transactional_id, error)
            except Exception as error:
                pass_on_signal(error)
                failure = error
        return failure

    def _outcome_unknown(self, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the database commit of a dual write that adds its records to the outbox {self.transactional_id!r} was "
            f"sent and its outcome is unknown: {why}. Database and Kafka will agree either way; do not repeat the dual "
            "write before its outcome is known",
            transactional_id=self.transactional_id,
            prepared_state="",
        )


def _nothing() -> None:
    pass
