"""The destinations of a run of `tests.spark.chaos` besides Kafka, and the stores of its decisions."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from spark_sink.errors import CommitLogError
from spark_sink.options import parse
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.opening import open_store
from spark_sink.store.sink_store import OperatedStore
from spark_sink.store.tables import BatchRow
from spark_sink.store.topic.topic_store import TopicStore

SINK_ID: Final = "chaos"
STORE_TOPIC: Final = "chaos.commits"


class Place(Protocol):
    """A sink's second destination, which a run compares with the topic."""

    @property
    def options(self) -> dict[str, str]:
        """The sink's options for this place."""

    @property
    def store(self) -> OperatedStore:
        """The commit store, as this process sees it."""

    def written(self) -> int | None:
        """Return about how many rows are decided; None while that cannot be told."""

    def rows(self) -> list[str] | None:
        """Return the rows of the table; None without a table."""

    def left_over(self) -> Collection[str]:
        """Return leftovers that should be gone once no batch is under way."""


class SqlTable:
    """A table in the store's database."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.store: OperatedStore = CommitStore(engine)
        self.options = {"commitStore.url": _url(engine), "dual.table": "target"}
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE target (id TEXT NOT NULL)"))

    def written(self) -> int | None:
        with suppress(DBAPIError), self._engine.connect() as connection:
            return connection.scalar(sa.text("SELECT count(*) FROM target")) or 0
        return None

    def rows(self) -> list[str] | None:
        return _column(self._engine, "SELECT id FROM target")

    def left_over(self) -> Collection[str]:
        """Return the staged rows."""
        (staging,) = _column(self._engine, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'dw_stage%'")
        return _column(self._engine, f"SELECT dw_attempt_id FROM {staging}")


@dataclass
class _Decided:
    """The rows of the decided batches, including those deleted from the store."""

    records: dict[int, int] = field(default_factory=dict)

    def seen(self, batches: Collection[BatchRow]) -> int:
        self.records.update({batch.batch_id: batch.records for batch in batches})
        return sum(self.records.values())


class LakeTable:
    """A Delta table, with the store in a database."""

    def __init__(self, engine: sa.Engine, directory: Path) -> None:
        from tests.spark.lake_tables import DeltaLake  # deltalake may not be installed

        self._engine = engine
        self._lake = DeltaLake(directory, pa.schema([("id", pa.string())]))
        self._decided = _Decided()
        self.store: OperatedStore = CommitStore(engine)
        self.options = {"commitStore.url": _url(engine), **self._lake.options}

    def written(self) -> int | None:
        with suppress(DBAPIError):
            if sa.inspect(self._engine).has_table("dw_batch"):
                return self._decided.seen(self.store.batches(SINK_ID))
            return 0
        return None

    def rows(self) -> list[str] | None:
        return sorted(map(str, self._lake.read()["id"].to_pylist()))

    def left_over(self) -> Collection[str]:
        """Return the files that the table is owed."""
        return _column(self._engine, "SELECT attempt_id FROM dw_lake_file WHERE decided_at IS NOT NULL")


class NoTable:
    """The topic of the rows alone, with the store in another one."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = {
            "commitStore.url": f"kafka:///{STORE_TOPIC}",
            "commitStore.timeoutMs": "20000",
            "commitStore.connectTimeoutMs": "5000",
        }
        self._decided = _Decided()
        store = open_store(parse(options | self.options))
        assert isinstance(store, TopicStore)
        store.create()
        self.store: OperatedStore = store

    def written(self) -> int | None:
        with suppress(CommitLogError):
            return self._decided.seen(self.store.batches(SINK_ID))
        return None

    def rows(self) -> list[str] | None:
        return None

    def left_over(self) -> Collection[str]:
        return ()


def _url(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def _column(engine: sa.Engine, sql: str) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.text(sql)))
