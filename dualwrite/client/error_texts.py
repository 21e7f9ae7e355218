"""Texts that explain errors: the meaning of Kafka's codes, missing permissions, and the last error before a timeout."""

from __future__ import annotations

import errno
import os
from typing import Final

from dualwrite.client.kafka_python import kafka_errors
from dualwrite.errors import Api

# One row per refusal; {0} is the requested resource: the topic, the group or the transactional id.
_MISSING_RIGHTS: Final[dict[tuple[Api, int], str]] = {
    (Api.PRODUCE, 29): "WRITE on the topic {0!r}",
    (Api.PRODUCE, 31): "IDEMPOTENT_WRITE on the cluster",
    (Api.PRODUCE, 53): "WRITE on the transactional id",
    (Api.FETCH, 29): "READ on the topic {0!r}, to prove how a prepared transaction ended, and to repair it",
    (Api.LIST_OFFSETS, 29): "DESCRIBE on the topic {0!r}",
    (Api.CREATE_TOPICS, 29): "CREATE on the topic {0!r}, or on the cluster",
    (Api.CREATE_TOPICS, 31): "CREATE on the topic {0!r}, or on the cluster",
    (Api.DELETE_RECORDS, 29): "DELETE on the topic {0!r}",
    (Api.METADATA, 29): "DESCRIBE on the topic {0!r} (WRITE includes it), or CREATE where it does not exist yet",
    (Api.FIND_COORDINATOR, 30): "DESCRIBE on the group {0!r} (READ includes it)",
    (Api.FIND_COORDINATOR, 53): "DESCRIBE on the transactional id {0!r} (WRITE includes it)",
    (Api.INIT_PRODUCER_ID, 31): "IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)",
    (Api.INIT_PRODUCER_ID, 53): "WRITE on the transactional id {0!r}",
    (Api.ADD_PARTITIONS_TO_TXN, 29): "WRITE on the topics of the transaction",
    (Api.ADD_PARTITIONS_TO_TXN, 53): "WRITE on the transactional id",
    (Api.ADD_OFFSETS_TO_TXN, 30): "READ on the group {0!r}",
    (Api.ADD_OFFSETS_TO_TXN, 53): "WRITE on the transactional id",
    (Api.END_TXN, 53): "WRITE on the transactional id {0!r}",
    (Api.WRITE_TXN_MARKERS, 31): "ALTER on the cluster (CLUSTER_ACTION where brokers are old)",
    (Api.TXN_OFFSET_COMMIT, 29): "READ on the topics whose offsets are committed",
    (Api.TXN_OFFSET_COMMIT, 30): "READ on the group {0!r}",
    (Api.TXN_OFFSET_COMMIT, 53): "WRITE on the transactional id",
    (Api.DESCRIBE_CONFIGS, 29): "DESCRIBE_CONFIGS on the topic {0!r}",
    (Api.DESCRIBE_CONFIGS, 31): "DESCRIBE_CONFIGS on the cluster",
    (Api.DESCRIBE_PRODUCERS, 29): "READ on the topic {0!r}",
    (Api.DESCRIBE_TRANSACTIONS, 53): "DESCRIBE on the transactional id {0!r} (WRITE includes it)",
}

# One row per error code whose name does not explain the event.
_MEANINGS: Final[dict[tuple[Api, int], str]] = {
    (Api.INIT_PRODUCER_ID, 50): "transaction.timeout.ms is more than the broker's transaction.max.timeout.ms",
    (Api.END_TXN, 48): "the transaction was ended by another producer with this id, or by the broker after its timeout",
    (Api.END_TXN, 49): "the transactional id has expired at the broker, or has another producer id now",
    (Api.TXN_OFFSET_COMMIT, 22): "the group has a newer generation than this consumer; rejoin, and consume from there",
    (Api.TXN_OFFSET_COMMIT, 25): "the consumer is no longer a member of the group; rejoin, and consume from there",
    (Api.TXN_OFFSET_COMMIT, 82): "another consumer with the same group.instance.id has taken over",
}


def error_name(error_code: int) -> str:
    """Return Kafka's name and number, for example `TOPIC_AUTHORIZATION_FAILED (29)`."""
    known = kafka_errors.get(error_code)
    return (
        f"error {error_code}, unknown to this version of dualwrite"
        if known is None
        else f"{known.message} ({error_code})"
    )


def missing_right(api: Api, error_code: int, resource: str) -> str | None:
    """Return the permission to grant after this error code, None if it is not about permissions."""
    right = _MISSING_RIGHTS.get((api, error_code))
    return None if right is None else right.format(resource)


def error_meaning(api: Api, error_code: int) -> str | None:
    """Return the meaning of an error code, None if the class of the error says enough."""
    return _MEANINGS.get((api, error_code))


class LastError:
    """The last error that was retried. Written by the loop, read by any thread; times in milliseconds."""

    def __init__(self) -> None:
        self._last: tuple[float, str] | None = None

    def note(self, now_ms: float, sentence: str) -> None:
        """Note an error whose cause will be retried."""
        self._last = (now_ms, sentence)

    def newest(self, other: LastError, since_ms: float = 0.0) -> str | None:
        """Return the later one of two last errors, unless it is older than `since_ms`."""
        notes = [note for note in (self._last, other._last) if note is not None and note[0] >= since_ms]
        return max(notes)[1] if notes else None


def reason_of(error: OSError) -> str:
    """Return why a connection failed, without the error number: event loops word and number it differently."""
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return error.strerror or str(error)
