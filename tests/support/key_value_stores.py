"""The key-value store of the crash tests: a RocksDB in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rocksdict import Rdict, WriteBatch

from examples.rocksdb_writer import STATE_COLUMN_FAMILY, RocksDbDualWriter
from tests.support.databases import unique


class RocksDbStore:
    def __init__(self, directory: str) -> None:
        self.address = directory
        self.take_back()

    def writer(self, **settings: Any) -> RocksDbDualWriter:
        return RocksDbDualWriter(self.db, **settings)

    def add(self, tx: Any, key: str, value: str) -> None:
        tx.put(key, value)

    def values(self) -> list[str]:
        return [str(value) for _, value in sorted(self.db.items())]

    def state(self, transactional_id: str) -> str | None:
        found = self.db.get_column_family(STATE_COLUMN_FAMILY).get(transactional_id.encode())
        return None if found is None else found.decode()

    def commit_as(self, transactional_id: str, state: str, events: dict[str, str]) -> None:
        if STATE_COLUMN_FAMILY not in Rdict.list_cf(self.address):
            self.db.create_column_family(STATE_COLUMN_FAMILY)
        batch = WriteBatch()
        for key, value in events.items():
            batch.put(key, value)
        batch.put(transactional_id.encode(), state.encode(), self.db.get_column_family_handle(STATE_COLUMN_FAMILY))
        self.db.write(batch)

    def let_go(self) -> None:
        self.db.close()

    def take_back(self) -> None:
        self.db = Rdict(self.address)

    def close(self) -> None:
        self.db.close()


def in_directory(directory: Path) -> RocksDbStore:
    """A new RocksDB."""
    return RocksDbStore(str(directory / unique("rocksdb")))
