"""The functions for applications: inside `transaction.atomic()`, and to monitor this process."""

from __future__ import annotations

from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.asyncio import async_unsafe

from dualwrite.client.records.record import RecordHeaders
from dualwrite.errors import ConfigError
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.django.pools import pool_of
from dualwrite.recipes.django.wrapper import DualWriteWrapper
from dualwrite.recipes.pool.status import PoolStatus


def send(
    topic: str,
    value: Any = None,
    key: Any = None,
    headers: RecordHeaders | None = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
    *,
    using: str | None = None,
) -> BufferedRecord:
    """Publish one record with the current transaction of a database; the arguments are those of `Producer.send`.

    It is kept until the outermost `transaction.atomic()` ends, sent right before the database commits, and visible only
    if the database commits. An inner `atomic()` that is rolled back drops the records that were sent in it.

    `using` is the database's alias, as everywhere in Django.

    Raises InvalidRecordError, TransactionTooLargeError, and the errors of `current_dual_write`. Each dooms the
    transaction (or the savepoint) even if it is swallowed.
    """
    return current_dual_write(using).send(topic, value, key, headers, partition, timestamp_ms)


@async_unsafe("A dual write blocks: call the function with transaction.atomic() through sync_to_async().")
def current_dual_write(using: str | None = None) -> DualWrite:
    """Return the dual write of the current transaction of a database; the first call begins it.

    Use it for `send_offsets` and `outcome`.

    Raises IllegalStateError outside of a transaction, ConfigError if the alias is not set up for dual writes, Django's
    TransactionManagementError in a transaction that must be rolled back, and Django's database errors.

    If it could not begin, the transaction (or the savepoint) is doomed, even if the error is swallowed.
    """
    return connection_of(using).current_dual_write()


def pool_status(using: str | None = None) -> PoolStatus:
    """Return the numbers of this process's pool of transactional ids, without a query to Kafka or the database.

    For probes: while `problem` is not None, transactions with records are refused.

    Raises ConfigError if the alias is not set up for dual writes.
    """
    return pool_of(connection_of(using)).status


def connection_of(using: str | None) -> DualWriteWrapper:
    """Return the connection of an alias in this thread. Raises ConfigError if its ENGINE has no dual writes."""
    alias = DEFAULT_DB_ALIAS if using is None else using
    connection = connections[alias]
    if not isinstance(connection, DualWriteWrapper):
        raise ConfigError(_OTHER_ENGINE.format(alias=alias, engine=connection.settings_dict["ENGINE"]))
    return connection


_OTHER_ENGINE: Final = (
    "the database {alias!r} has the ENGINE {engine!r}, which does not support dual writes, so no record was accepted: "
    "set its ENGINE to 'dualwrite.recipes.django.postgresql' or 'dualwrite.recipes.django.mysql', or name another "
    "database with using="
)
