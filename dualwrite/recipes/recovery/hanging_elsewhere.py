"""Find transactions of ids that hang in a topic although the row of the id names another transaction, or none."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Final

from dualwrite.admin import HangingTransaction, TransactionAdmin
from dualwrite.errors import AuthorizationError, IncompleteAnswerError, KafkaError
from dualwrite.hanging import pair_of
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.proof import cluster_of, is_elsewhere, is_settled, topics_named
from dualwrite.recipes.recovery.seen import Cluster
from dualwrite.recipes.recovery.stored_rows import StoredRow

_UNKNOWN_TOPIC: Final = 3
_LEAST_MS: Final = 1_000
MOST_MS: Final = 10_000
"""How long the search takes at most: a topic without a leader would otherwise take the whole time limit."""


def find_hanging(
    admin: TransactionAdmin,
    rows: Mapping[str, StoredRow],
    topics: Collection[str],
    unseen: list[str],
    *,
    min_age_ms: int,
    timeout_ms: int = MOST_MS,
    stopped: threading.Event | None = None,
) -> tuple[list[HangingTransaction], list[str]]:
    """Return what hangs under the ids of `rows`, by Kafka's names, in `topics` or the rows' topics; and those searched.

    Transactions of ids that no coordinator knows are left out: they may belong to other applications. Appends to
    `unseen` why a topic was not searched; but not for one that only a manifest names, which was deleted since or may
    not be read, nor for one that only settled rows name, which need nothing. Those come last. All topics together take
    at most about `timeout_ms`, or MOST_MS, because this only reports. None begins once `stopped` is set.
    """
    found: list[HangingTransaction] = []
    searched: list[str] = []
    deadline_s = time.monotonic() + min(timeout_ms, MOST_MS) / 1000
    unsettled = [row.manifest for row in rows.values() if not is_settled(row.state, row.manifest)]
    needed = {*topics, *(topic for text in unsettled for topic in topics_named(text))}
    named = {topic for row in rows.values() for topic in topics_named(row.manifest)}
    for number, topic in enumerate([*sorted(needed), *sorted(named - needed)]):
        if stopped is not None and stopped.is_set():
            break
        left_ms = int((deadline_s - time.monotonic()) * 1000)
        if left_ms <= 0:
            unseen += [_not_searched(topic, f"{MOST_MS} ms have passed")] if topic in needed else []
            continue
        of_each_ms = max(left_ms // (len(needed if topic in needed else needed | named) - number), _LEAST_MS)
        failures: list[KafkaError] = []
        try:
            found += admin.find_hanging(topic, max_transaction_timeout_ms=min_age_ms, timeout_ms=of_each_ms)
        except IncompleteAnswerError as error:
            found += error.partial
            failures += error.failures.values()
        except KafkaError as error:
            failures.append(error)
        searched += [] if failures else [topic]
        told = [each for each in failures if topic in topics or (topic in needed and not _is_no_topic_of_ours(each))]
        unseen += [_not_searched(topic, why) for why in dict.fromkeys(map(first_line, told))]
    return [each for each in found if each.transactional_id in rows], searched


def is_decided(hanging: HangingTransaction, row: StoredRow, cluster: Cluster) -> bool | None:
    """Return whether the row says that its database has decided the transaction; None if it does not say.

    True: it names the transaction. Others have its pair before transaction.version 2, and where the row's was prepared
    in another cluster. False: it names none, or an earlier one of this cluster; a later one may have replaced this one.
    """
    if row.state is None:
        return None
    pair = pair_of(hanging)
    try:
        named = PreparedTxnState(row.state)
    except ValueError:
        return None
    if is_elsewhere(named, row.manifest, cluster.cluster_id):
        return None
    if named == pair:
        return True if cluster.transaction_version >= 2 else None
    is_earlier = named.producer_id == pair.producer_id and named.producer_epoch < pair.producer_epoch
    return False if named.is_empty or (is_earlier and cluster_of(named, row.manifest)) else None


def _not_searched(topic: str, why: str) -> str:
    return f"topic {topic!r} was not searched for transactions that hang: {why}"


def _is_no_topic_of_ours(error: KafkaError) -> bool:
    return isinstance(error, AuthorizationError) or error.error_code == _UNKNOWN_TOPIC
