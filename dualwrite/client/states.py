"""The producer's states."""

from __future__ import annotations

from enum import Enum


class ProducerState(Enum):
    """Where a producer stands; the names are those of Kafka's own client."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED_TRANSACTION = "prepared"
    COMMITTING_TRANSACTION = "committing"
    ABORTING_TRANSACTION = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"
    CLOSED = "closed"
