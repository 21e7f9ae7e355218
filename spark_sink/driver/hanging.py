"""Find the transactions of a sink that hang: no coordinator is going to write a marker behind them (KAFKA-20734)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dualwrite.admin import HangingTransaction, TransactionAdmin
from dualwrite.decisions.republish import topics_of
from dualwrite.errors import AuthorizationError, IncompleteAnswerError, KafkaError
from dualwrite.hanging import next_step, pair_of
from spark_sink.store.attempt_states import AttemptStatus
from spark_sink.store.sink_store import OperatedStore

MOST_MS: Final = 10_000
"""How long the search takes at most, more or less."""

_LEAST_MS: Final = 1_000
_UNKNOWN_TOPIC: Final = 3
_TO_COMMIT: Final = (AttemptStatus.COMMITTING, AttemptStatus.COMMITTED)


def hanging_of(
    store: OperatedStore,
    admin: TransactionAdmin,
    sink_id: str,
    unseen: list[str],
    *,
    min_age_ms: int,
    timeout_ms: int = MOST_MS,
) -> list[str]:
    """Return a sentence about each transaction of the sink's ids that hangs, with the command that ends it.

    Searches the topics of the newest manifests. Appends to `unseen` why one was not searched, unless it was deleted
    since, or may not be read.
    """
    prepared = store.newest_prepared(sink_id)
    topics = {topic for row in prepared.values() for topic in topics_of(row.state, row.manifest)}
    in_topics = _search(admin, topics, unseen, min_age_ms=min_age_ms, timeout_ms=min(timeout_ms, MOST_MS))
    found = [each for each in in_topics if each.transactional_id in prepared]
    attempts = store.attempts(sink_id, _TO_COMMIT) if found else []
    decided = {(attempt.transactional_id, attempt.prepared_state) for attempt in attempts}
    return [
        next_step(each, is_decided=(each.transactional_id, str(pair_of(each))) in decided or None) for each in found
    ]


def _search(
    admin: TransactionAdmin, topics: Collection[str], unseen: list[str], *, min_age_ms: int, timeout_ms: int
) -> list[HangingTransaction]:
    found: list[HangingTransaction] = []
    for topic in sorted(topics):
        of_each_ms = max(timeout_ms // len(topics), _LEAST_MS)
        failures: list[KafkaError] = []
        try:
            found += admin.find_hanging(topic, max_transaction_timeout_ms=min_age_ms, timeout_ms=of_each_ms)
        except IncompleteAnswerError as error:
            found += error.partial
            failures += error.failures.values()
        except KafkaError as error:
            failures.append(error)
        told = {" ".join(str(each).split()): None for each in failures if not _is_of_no_use(each)}
        unseen += [f"topic {topic!r} was not searched for transactions that hang: {why}" for why in told]
    return found


def _is_of_no_use(error: KafkaError) -> bool:
    return isinstance(error, AuthorizationError) or error.error_code == _UNKNOWN_TOPIC
