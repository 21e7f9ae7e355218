"""List the open transactions of a sink at the brokers, and end them by their own pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from dualwrite.admin import TransactionAdmin, TransactionDescription
from dualwrite.errors import IncompleteAnswerError, KafkaError
from dualwrite.prepared_state import PreparedTxnState

ResponseT = TypeVar("ResponseT")

_ONGOING: Final = "Ongoing"
_OPEN_STATES: Final = (_ONGOING, "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that blocks read_committed consumers."""

    transactional_id: str
    state: str
    pair: str
    """Producer id and epoch, formatted as in a prepared state."""
    age_ms: int
    """By this machine's clock."""
    topic_partitions: tuple[str, ...]

    @property
    def is_undecided(self) -> bool:
        """Whether the coordinator has not been told yet how the transaction ends."""
        return self.state == _ONGOING


class OpenTransactions:
    """Reads open transactions, and ends them. `unseen` collects sentences about brokers that could not be queried."""

    def __init__(self, admin: TransactionAdmin, *, now_ms: Callable[[], int], timeout_ms: int | None = None) -> None:
        """`timeout_ms` limits each call; None: the timeout of the admin client."""
        self._admin = admin
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms

    def cluster_id(self) -> str:
        """Return the id of the Kafka cluster that responds; "" if it does not report one."""
        return self._admin.describe_cluster(timeout_ms=self._timeout_ms).cluster_id or ""

    def of_sink(self, sink_id: str, unseen: list[str]) -> dict[str, OpenTransaction]:
        """Return the open transactions of this sink, without those of a sink whose id begins with this sink's."""
        prefix = f"{sink_id}-"
        listed = _partial_response(
            lambda: self._admin.transactions_of_prefix(prefix, timeout_ms=self._timeout_ms), unseen
        )
        ids = [row.transactional_id for row in listed if row.state in _OPEN_STATES]
        return self.described([each for each in ids if is_of_sink(sink_id, each)], unseen)

    def described(self, ids: Collection[str], unseen: list[str]) -> dict[str, OpenTransaction]:
        """Return those of these transactions that are open."""
        if not ids:
            return {}
        described = _partial_response(
            lambda: self._admin.describe_transactions(ids, timeout_ms=self._timeout_ms), unseen
        )
        return {each: self._opened(found) for each, found in described.items() if found and found.state in _OPEN_STATES}

    def end(self, pairs: Mapping[str, str], *, commit: bool) -> set[str]:
        """Commit or abort each transaction, by id, if it still has this pair; return the ids that were ended."""
        if not pairs:
            return set()
        prepared = {each: PreparedTxnState(pair) for each, pair in pairs.items()}
        if commit:
            return self._admin.commit_prepared_transactions(prepared, timeout_ms=self._timeout_ms)
        aborted = self._admin.abort_open_transactions(prepared, timeout_ms=self._timeout_ms)
        return aborted | {each for each in pairs.keys() - aborted if self._terminated(each, pairs[each])}

    def _terminated(self, transactional_id: str, pair: str) -> bool:
        """Abort a transaction that a process has taken over and kept, so that its pair cannot end it (KIP-939)."""
        still = self.described([transactional_id], []).get(transactional_id)
        if still is None or not still.is_undecided or still.pair != pair:
            return False
        try:
            self._admin.force_terminate_transaction(transactional_id, timeout_ms=self._timeout_ms)
        except KafkaError:
            return False
        return True

    def _opened(self, found: TransactionDescription) -> OpenTransaction:
        started_ms = found.transaction_start_time_ms
        return OpenTransaction(
            transactional_id=found.transactional_id,
            state=found.state,
            pair=f"{found.producer_id}:{found.producer_epoch}",
            age_ms=0 if started_ms is None else max(0, self._now_ms() - started_ms),
            topic_partitions=tuple(f"{topic}-{partition}" for topic, partition in sorted(found.topic_partitions)),
        )


def is_of_sink(sink_id: str, transactional_id: str) -> bool:
    """Return whether a task of this sink may have leased the id. A sink's name never has a `-`."""
    return re.fullmatch(rf"{re.escape(sink_id)}-[0-9]{{1,9}}-[0-9]{{1,9}}", transactional_id) is not None


def _partial_response(ask: Callable[[], ResponseT], unseen: list[str]) -> ResponseT:
    """Return the response as far as it is complete; add a sentence to `unseen` for each broker that did not respond."""
    try:
        return ask()
    except IncompleteAnswerError as error:
        unseen.extend(dict.fromkeys(" ".join(str(failure).split()) for failure in error.failures.values()))
        partial: ResponseT = error.partial
        return partial
