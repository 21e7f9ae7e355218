"""Change a database and publish to Kafka atomically, across every crash.

The public names are imported when they are first used, so that importing an error does not load an event loop.
"""
# ruff: noqa: I001 - one import per module; importing each name as itself exports it

from __future__ import annotations

# It registers a function to be called when the main thread ends, which is impossible later: an import of it then, as by
# uvloop, fails. Other threads may outlive the main thread, and first use the library then.
import concurrent.futures.thread  # noqa: F401
from importlib import import_module
from importlib.util import find_spec
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any, Final

# The emulator and the testing tools are distributions of their own, which may be installed in another directory: that
# of the user, a virtual environment over the system's packages, or one directory for each distribution.
__path__ = extend_path(__path__, __name__)

if TYPE_CHECKING:
    from dualwrite.admin import (
        AsyncTransactionAdmin as AsyncTransactionAdmin,
        TransactionAdmin as TransactionAdmin,
    )
    from dualwrite.async_producer import AsyncProducer as AsyncProducer
    from dualwrite.recipes.consume.consume import ConsumeTransformWrite as ConsumeTransformWrite
    from dualwrite.recipes.consume.consume_async import AsyncConsumeTransformWrite as AsyncConsumeTransformWrite
    from dualwrite.recipes.consume.consumed_offsets import (
        OffsetsInDatabase as OffsetsInDatabase,
        OffsetsInTransaction as OffsetsInTransaction,
    )
    from dualwrite.recipes.psycopg.writer import PsycopgDualWriter as PsycopgDualWriter
    from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter as AsyncPsycopgDualWriter
    from dualwrite.recipes.asyncpg.writer import (
        AsyncpgDualWriter as AsyncpgDualWriter,
    )
    from dualwrite.recipes.sqlalchemy.sessions import (
        current_dual_write as current_dual_write,
        dual_write_sessions as dual_write_sessions,
    )
    from dualwrite.recipes.sqlalchemy.writer import DualWriter as DualWriter
    from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter as AsyncDualWriter
    from dualwrite.recipes.recovery.service import RecoveryService as RecoveryService
    from dualwrite.errors import (
        AbortableError as AbortableError,
        AdminError as AdminError,
        AnotherClusterError as AnotherClusterError,
        AuthenticationError as AuthenticationError,
        AuthorizationError as AuthorizationError,
        BoundExceededError as BoundExceededError,
        CommitOutcomeUnknown as CommitOutcomeUnknown,
        ConfigError as ConfigError,
        ConsumedLogError as ConsumedLogError,
        ConsumedLogReplacedError as ConsumedLogReplacedError,
        ConsumedRecordsMissingError as ConsumedRecordsMissingError,
        DatabaseWentBackError as DatabaseWentBackError,
        DatabaseMovedError as DatabaseMovedError,
        DeliveryError as DeliveryError,
        DualWriteError as DualWriteError,
        FatalError as FatalError,
        FencedCommitOutcomeUnknown as FencedCommitOutcomeUnknown,
        FencedError as FencedError,
        IllegalStateError as IllegalStateError,
        IncompleteAnswerError as IncompleteAnswerError,
        InvalidPatternError as InvalidPatternError,
        InvalidRecordError as InvalidRecordError,
        InvalidTxnStateError as InvalidTxnStateError,
        KafkaError as KafkaError,
        KafkaTimeoutError as KafkaTimeoutError,
        KafkaUnreachableError as KafkaUnreachableError,
        NoMarkerError as NoMarkerError,
        NotDurableError as NotDurableError,
        NotProvenError as NotProvenError,
        OutcomeUnknown as OutcomeUnknown,
        PoolTimeoutError as PoolTimeoutError,
        OwedRecordsRefusedError as OwedRecordsRefusedError,
        PartitionTakenOverError as PartitionTakenOverError,
        PreparedTransactionLost as PreparedTransactionLost,
        RecipeError as RecipeError,
        RecordsGoneError as RecordsGoneError,
        RecordsRefusedError as RecordsRefusedError,
        RetriableError as RetriableError,
        RowLockTimeoutError as RowLockTimeoutError,
        SnapshotTooOldError as SnapshotTooOldError,
        StateRowError as StateRowError,
        StateTableError as StateTableError,
        StoredBlockRefusedError as StoredBlockRefusedError,
        StoredBlocksError as StoredBlocksError,
        StoreFullError as StoreFullError,
        TransactionDoomedError as TransactionDoomedError,
        TransactionEndedInsideError as TransactionEndedInsideError,
        TransactionHangsError as TransactionHangsError,
        TransactionTooLargeError as TransactionTooLargeError,
        TransactionalIdNotFoundError as TransactionalIdNotFoundError,
        UnsafeDatabaseError as UnsafeDatabaseError,
        UnsupportedByBrokerError as UnsupportedByBrokerError,
    )
    from dualwrite.delivery import (
        Direct as Direct,
        Outbox as Outbox,
    )
    from dualwrite.guarantee import (
        Guarantee as Guarantee,
        Tier as Tier,
    )
    from dualwrite.outcome import (
        Outcome as Outcome,
        outcome_of as outcome_of,
    )
    from dualwrite.prepared_state import PreparedTxnState as PreparedTxnState
    from dualwrite.settings import (
        AdminSettings as AdminSettings,
        ProducerSettings as ProducerSettings,
        WriterPoolSettings as WriterPoolSettings,
        WriterSettings as WriterSettings,
    )
    from dualwrite.producer import (
        ConsumerGroupMetadata as ConsumerGroupMetadata,
        OffsetAndMetadata as OffsetAndMetadata,
        Producer as Producer,
        ProducerState as ProducerState,
        Record as Record,
        RecordFuture as RecordFuture,
        RecordMetadata as RecordMetadata,
        SentRecords as SentRecords,
        StoredRecords as StoredRecords,
        TopicPartition as TopicPartition,
        aiokafka_group_metadata as aiokafka_group_metadata,
    )

_MODULES: Final = {
    "AsyncTransactionAdmin": "dualwrite.admin",
    "TransactionAdmin": "dualwrite.admin",
    "AsyncProducer": "dualwrite.async_producer",
    "ConsumeTransformWrite": "dualwrite.recipes.consume.consume",
    "AsyncConsumeTransformWrite": "dualwrite.recipes.consume.consume_async",
    "OffsetsInDatabase": "dualwrite.recipes.consume.consumed_offsets",
    "OffsetsInTransaction": "dualwrite.recipes.consume.consumed_offsets",
    "Direct": "dualwrite.delivery",
    "Outbox": "dualwrite.delivery",
    "PsycopgDualWriter": "dualwrite.recipes.psycopg.writer",
    "AsyncPsycopgDualWriter": "dualwrite.recipes.psycopg.writer_async",
    "AsyncpgDualWriter": "dualwrite.recipes.asyncpg.writer",
    "current_dual_write": "dualwrite.recipes.sqlalchemy.sessions",
    "dual_write_sessions": "dualwrite.recipes.sqlalchemy.sessions",
    "DualWriter": "dualwrite.recipes.sqlalchemy.writer",
    "AsyncDualWriter": "dualwrite.recipes.sqlalchemy.writer_async",
    "RecoveryService": "dualwrite.recipes.recovery.service",
    "AbortableError": "dualwrite.errors",
    "AdminError": "dualwrite.errors",
    "AnotherClusterError": "dualwrite.errors",
    "AuthenticationError": "dualwrite.errors",
    "AuthorizationError": "dualwrite.errors",
    "BoundExceededError": "dualwrite.errors",
    "CommitOutcomeUnknown": "dualwrite.errors",
    "ConfigError": "dualwrite.errors",
    "ConsumedLogError": "dualwrite.errors",
    "ConsumedLogReplacedError": "dualwrite.errors",
    "ConsumedRecordsMissingError": "dualwrite.errors",
    "DatabaseWentBackError": "dualwrite.errors",
    "DatabaseMovedError": "dualwrite.errors",
    "DeliveryError": "dualwrite.errors",
    "DualWriteError": "dualwrite.errors",
    "FatalError": "dualwrite.errors",
    "FencedCommitOutcomeUnknown": "dualwrite.errors",
    "FencedError": "dualwrite.errors",
    "IllegalStateError": "dualwrite.errors",
    "IncompleteAnswerError": "dualwrite.errors",
    "InvalidPatternError": "dualwrite.errors",
    "InvalidRecordError": "dualwrite.errors",
    "InvalidTxnStateError": "dualwrite.errors",
    "KafkaError": "dualwrite.errors",
    "KafkaTimeoutError": "dualwrite.errors",
    "KafkaUnreachableError": "dualwrite.errors",
    "NoMarkerError": "dualwrite.errors",
    "NotDurableError": "dualwrite.errors",
    "NotProvenError": "dualwrite.errors",
    "OutcomeUnknown": "dualwrite.errors",
    "PoolTimeoutError": "dualwrite.errors",
    "OwedRecordsRefusedError": "dualwrite.errors",
    "PartitionTakenOverError": "dualwrite.errors",
    "PreparedTransactionLost": "dualwrite.errors",
    "RecipeError": "dualwrite.errors",
    "RecordsGoneError": "dualwrite.errors",
    "RecordsRefusedError": "dualwrite.errors",
    "RetriableError": "dualwrite.errors",
    "RowLockTimeoutError": "dualwrite.errors",
    "SnapshotTooOldError": "dualwrite.errors",
    "StateRowError": "dualwrite.errors",
    "StateTableError": "dualwrite.errors",
    "StoredBlockRefusedError": "dualwrite.errors",
    "StoredBlocksError": "dualwrite.errors",
    "StoreFullError": "dualwrite.errors",
    "TransactionDoomedError": "dualwrite.errors",
    "TransactionEndedInsideError": "dualwrite.errors",
    "TransactionHangsError": "dualwrite.errors",
    "TransactionTooLargeError": "dualwrite.errors",
    "TransactionalIdNotFoundError": "dualwrite.errors",
    "UnsafeDatabaseError": "dualwrite.errors",
    "UnsupportedByBrokerError": "dualwrite.errors",
    "Guarantee": "dualwrite.guarantee",
    "Tier": "dualwrite.guarantee",
    "Outcome": "dualwrite.outcome",
    "outcome_of": "dualwrite.outcome",
    "PreparedTxnState": "dualwrite.prepared_state",
    "AdminSettings": "dualwrite.settings",
    "ProducerSettings": "dualwrite.settings",
    "WriterPoolSettings": "dualwrite.settings",
    "WriterSettings": "dualwrite.settings",
    "ConsumerGroupMetadata": "dualwrite.producer",
    "OffsetAndMetadata": "dualwrite.producer",
    "Producer": "dualwrite.producer",
    "ProducerState": "dualwrite.producer",
    "Record": "dualwrite.producer",
    "RecordFuture": "dualwrite.producer",
    "RecordMetadata": "dualwrite.producer",
    "SentRecords": "dualwrite.producer",
    "StoredRecords": "dualwrite.producer",
    "TopicPartition": "dualwrite.producer",
    "aiokafka_group_metadata": "dualwrite.producer",
}

_PACKAGES: Final = {
    "dualwrite.recipes.asyncpg": "asyncpg",
    "dualwrite.recipes.consume": "sqlalchemy",
    "dualwrite.recipes.psycopg": "psycopg",
    "dualwrite.recipes.recovery": "sqlalchemy",
    "dualwrite.recipes.sqlalchemy": "sqlalchemy",
}
"""The package of an extra that each of these modules needs."""

_EXTRAS: Final = {
    "aiokafka": "fast",
    "asyncpg": "asyncpg",
    "psycopg": "psycopg",
    "sqlalchemy": "postgres",
}
"""The extra that installs a package. For SQLAlchemy it is that of PostgreSQL; other databases have their own."""


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name == "__all__":
        return _importable()
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs the package {error.name}, which is not installed: "
            f"pip install '{__name__}[{extra}]' (docs/platforms.md has all extras)",
            name=error.name,
        ) from error
    return value


def _importable() -> list[str]:
    """Return the names that `from dualwrite import *` imports: those whose packages are installed."""
    missing = {package for package in _PACKAGES.values() if find_spec(package) is None}
    without = tuple(f"{module}." for module, package in _PACKAGES.items() if package in missing)
    return sorted(name for name, module in _MODULES.items() if not f"{module}.".startswith(without))


def __dir__() -> list[str]:
    return sorted([*_MODULES, "__all__", *(name for name in globals() if name.startswith("__"))])
