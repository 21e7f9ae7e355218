"""Features that a backend does not support, and why: one table, which errors and tests quote.

Everything else works: both faces (threads, asyncio), both slot policies (one id, a pool), `@transactional`, the
integration with Sessions, an outbox, and storing while Kafka is away. An outbox needs a database that has its table
(`outbox` of SQLAlchemy's backend). asyncpg has no face for threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from dualwrite.errors import ConfigError


class BackendName(StrEnum):
    """The databases, by the library that reaches them."""

    SQLALCHEMY = "SQLAlchemy"
    PSYCOPG = "psycopg"
    ASYNCPG = "asyncpg"
    ROCKSDB = "RocksDB"


class Feature(StrEnum):
    """Features that a database may not support."""

    ASYNCIO = "asyncio"
    POOL = "a pool of transactional ids"
    SAVEPOINTS = 'savepoints, such as those of @transactional(inside="savepoint")'
    SESSIONS = "dual_write_sessions"
    OUTBOX = "an outbox"
    DELIVERY = "another delivery than Direct()"


_B, _F = BackendName, Feature

_NO_SESSIONS: Final = "only SQLAlchemy has Sessions: send inside `with writer.transaction()`"

CANNOT: Final[Mapping[tuple[BackendName, Feature], str]] = MappingProxyType(
    {
        (_B.PSYCOPG, _F.SESSIONS): _NO_SESSIONS,
        (_B.ASYNCPG, _F.SESSIONS): _NO_SESSIONS,
        (_B.ROCKSDB, _F.DELIVERY): (
            "it needs tables in an SQL database: let a block fail while Kafka is away, and repeat it"
        ),
        (_B.ROCKSDB, _F.ASYNCIO): "rocksdict blocks its thread: call the writer by asyncio.to_thread()",
        (_B.ROCKSDB, _F.POOL): (
            "only one process can open a RocksDB, so there is no other to share ids with by leases: make one writer "
            "per thread, each with its own id"
        ),
        (_B.ROCKSDB, _F.SAVEPOINTS): "a block's changes are one batch, applied as a whole or not at all",
        (_B.ROCKSDB, _F.SESSIONS): _NO_SESSIONS,
    }
)


def assert_can(backend: BackendName, feature: Feature) -> None:
    """Raise ConfigError, with the reason, if `backend` does not support `feature`."""
    why = CANNOT.get((backend, feature))
    if why is not None:
        raise ConfigError(f"{backend} cannot carry {feature}: {why}")
