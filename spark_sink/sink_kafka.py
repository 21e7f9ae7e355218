"""Kafka as the protocol uses it: the port `SinkKafka`, and `ProducerSinkKafka`, which implements it with producers.

One rule makes transactional ids reusable, and both halves of the port keep it: *always take an id over with
`init_transactions(keep_prepared_txn=True)`, then read the attempt's row again, and only then complete anything*. Taking
an id over fences its previous owner but decides nothing (below tier 1 it only describes the transaction). A task that
was suspended between lease and initialisation finds that the status of its attempt has changed, and leaves the
transaction that it sees alone: it may be the prepared transaction of the next owner of the id.

`attempt/task_transaction.py` and `driver/completion.py` do the work; a process loads each when it first needs it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_sink.kafka_settings import admin_settings
from spark_sink.options import SinkOptions
from spark_sink.pause_points import Pause

if TYPE_CHECKING:
    import pyarrow as pa

    from dualwrite.prepared_state import PreparedTxnState
    from dualwrite.producer import Producer
    from spark_sink.attempt.task_transaction import ProducerTransaction
    from spark_sink.driver.completion import Completion
    from spark_sink.driver.orphans import OrphanKafka
    from spark_sink.store.attempt_states import Claim, ClaimRows, Ended, Prepared

COMPLETION_TIMEOUT_MS: Final = 20_000
"""The limit for taking ids over, and for completing their transactions, unless `kafka.max.block.ms` is set.

Spark's trigger waits for both. Transactions not complete by then are retried `commit.retries` times.
"""

_LOOK_MS: Final = 5_000

_log = logging.getLogger(__name__)


class TaskTransaction(Protocol):
    """The Kafka transaction of one attempt; belongs to one thread of one task worker."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Encode and send the Kafka columns of these rows."""

    @property
    def records(self) -> int:
        """The number of records sent."""

    @property
    def bytes(self) -> int:
        """The number of bytes of keys and values sent."""

    @property
    def is_bounded(self) -> bool:
        """Whether the broker aborts the transaction after a time, although it is prepared."""

    def prepare(self) -> Prepared:
        """Flush, and promise that the transaction can be committed."""

    def abort(self) -> None:
        """Abort if possible; a transaction that stays open is aborted when the attempt is finished. Never raises."""

    def close(self) -> None:
        """Release the producer; a prepared transaction stays as it is. Never raises."""


class SinkKafka(Protocol):
    """The operations on Kafka that PLAN, WRITE, COMMIT, ABORT and FINISH need."""

    def open(self, transactional_id: str, still_mine: Callable[[], bool]) -> TaskTransaction:
        """Take the id over, abort any open transaction, call `still_mine` (which reads the attempt's row), and begin.

        When `still_mine` is called, all other producers are fenced. An open transaction is aborted only after another
        call of it. Raises AttemptCondemnedError if it returns False; then nothing was begun, and no transaction of
        another attempt was completed.
        """

    def end(self, claims: Sequence[Claim], rows: ClaimRows) -> Mapping[str, Ended]:
        """Complete the transactions of all claims in parallel; return the endings by attempt id.

        The rows are read after the ids were taken over and before anything is completed; claims that are no longer
        wanted are LEFT. A transaction that Kafka has aborted although it is to be committed is published again, if the
        log has it. One failure does not stop the others.
        """

    def not_open(self, prepared: Mapping[str, PreparedTxnState]) -> Sequence[str]:
        """Return those of these transactional ids whose open transaction is not the prepared one. Changes nothing."""

    def transactions(self) -> AbstractContextManager[OrphanKafka]:
        """Return the open transactions of sinks, for as long as the context is entered."""

    def close(self) -> None:
        """Close the connections. Never raises."""


class ProducerSinkKafka:
    """A `SinkKafka` with `dualwrite`'s producers. Keep it, because it keeps connections. A forked child opens its own.

    `pause` is called before each repair and after each completion; transactions are then completed one after the other.
    """

    def __init__(self, options: SinkOptions, *, pause: Pause | None = None) -> None:
        self._options = options
        self._settings: dict[str, Any] = dict(options.kafka)
        self._pause = pause
        self._completion: Completion | None = None
        self._keeper: tuple[int, Producer] | None = None
        """A producer with its process id. It sends nothing; while it is open, all connections stay open."""

    def open(self, transactional_id: str, still_mine: Callable[[], bool]) -> ProducerTransaction:
        """See `SinkKafka.open`.

        Also raises SinkOptionError if the broker supports less than `txn.mode` requires, and AuthorizationError,
        AuthenticationError, KafkaTimeoutError.
        """
        from spark_sink.attempt.task_transaction import begin

        self._keep_connections()
        return begin(self._options, self._settings, transactional_id, still_mine)

    def end(self, claims: Sequence[Claim], rows: ClaimRows) -> Mapping[str, Ended]:
        """See `SinkKafka.end`."""
        return self._ready_completion().end(claims, rows) if claims else {}

    def not_open(self, prepared: Mapping[str, PreparedTxnState]) -> Sequence[str]:
        """See `SinkKafka.not_open`. Raises the errors of an admin client."""
        return self._ready_completion().not_open(prepared)

    @contextmanager
    def transactions(self) -> Iterator[OrphanKafka]:
        """See `SinkKafka.transactions`. Each call to Kafka takes at most 5 s: a batch waits for it."""
        from dualwrite.admin import TransactionAdmin
        from spark_sink.driver.open_transactions import OpenTransactions

        self._keep_connections()
        with TransactionAdmin(admin_settings(self._settings)) as admin:
            yield OpenTransactions(admin, now_ms=lambda: int(time.time() * 1000), timeout_ms=_LOOK_MS)

    def _ready_completion(self) -> Completion:
        self._keep_connections()
        if self._completion is None:
            self._completion = self._new_completion()
        return self._completion

    def _new_completion(self) -> Completion:
        from spark_sink.driver.completion import Completion

        return Completion(
            # A transaction that was prepared with a bounded guarantee is completed with it: the task that prepared it
            # has checked that the guarantee is sufficient.
            self._settings
            | {
                "transaction.two.phase.commit.enable": True,
                "accept.bounded.guarantee": True,
                "transaction.timeout.ms": self._options.txn_timeout_ms,
            },
            parallelism=self._options.commit_parallelism,
            step_timeout_ms=int(self._options.kafka.get("max.block.ms", COMPLETION_TIMEOUT_MS)),
            pause=self._pause,
        )

    def close(self) -> None:
        """Close the connections. Never raises."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper[0] == os.getpid():
            try:
                keeper[1].close(timeout_s=0)
            except Exception as error:
                _log.info("closing the Kafka connections failed: %s", error)

    def _keep_connections(self) -> None:
        if self._keeper is not None and self._keeper[0] == os.getpid():
            return
        from dualwrite.producer import Producer

        self._keeper = os.getpid(), Producer(self._settings)
