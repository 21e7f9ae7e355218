"""A Delta and an Iceberg table for tests: creation, other writers, maintenance, damage and reading."""

from __future__ import annotations

import json
import shutil
import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_sink.lake.opening import open_log
from spark_sink.lake.place import Catalog, LakePlace
from spark_sink.lake.table_log import LakeState, Mark, TableLog
from spark_sink.options import DualMode, DualTable
from tests.support.databases import unique

deltalake: Any = pytest.importorskip("deltalake")
pyiceberg_catalogs: Any = pytest.importorskip("pyiceberg.catalog.sql")

COLUMNS: Final = pa.schema([("value", pa.string())])


def copy_database(source: Path | str, target: Path | str) -> None:
    """Make one SQLite database a copy of another."""
    with sqlite3.connect(source) as original, sqlite3.connect(target) as copy:
        original.backup(copy)


class _OfFiles(ABC):
    """A table of files as a sink is given it."""

    @property
    @abstractmethod
    def place(self) -> LakePlace: ...

    @property
    @abstractmethod
    def options(self) -> dict[str, str]: ...

    @property
    @abstractmethod
    def directory(self) -> Path: ...

    def dual(self, columns: tuple[str, ...] | None = ("value",)) -> DualTable:
        """Return the parsed options."""
        return DualTable(self.options["dual.table"], columns, DualMode.INSERT, None, lake=self.place)

    def log(self, sink_id: str) -> TableLog:
        """Open the table's log for a sink."""
        return open_log(self.place, sink_id)

    def files(self) -> set[str]:
        """Return the data files that are there."""
        return {each.name for each in self.directory.glob("*.parquet")}


class DeltaLake(_OfFiles):
    """A table in a directory of its own."""

    kind = "Delta"

    def __init__(self, directory: Path, columns: pa.Schema = COLUMNS, **settings: str) -> None:
        self.root = directory / unique("lake")
        self._columns = columns
        configuration = {name.replace("__", "."): value for name, value in settings.items()}
        schema = deltalake.Schema.from_arrow(columns)
        deltalake.DeltaTable.create(str(self.root), schema=schema, configuration=configuration)

    @property
    def place(self) -> LakePlace:
        """The table's place, as an option."""
        return LakePlace(str(self.root))

    @property
    def options(self) -> dict[str, str]:
        """The options `dual.table` and `dual.catalog...`."""
        return {"dual.table": f"delta:{self.root}"}

    @property
    def directory(self) -> Path:
        """The directory of the tasks' data files."""
        return self.root

    def open(self) -> Any:
        """Return the table, for the library's calls."""
        return deltalake.DeltaTable(str(self.root))

    def read(self) -> pa.Table:
        """Return the rows that a reader of the table sees now."""
        return self.open().to_pyarrow_table()

    def append(self, rows: pa.Table) -> None:
        """Append rows as another writer does."""
        deltalake.write_deltalake(str(self.root), rows, mode="append")

    def rewrite(self) -> None:
        """Compact the table, forget its history, and delete every file that no reader needs."""
        table = self.open()
        table.optimize.compact()
        table.create_checkpoint()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def retype(self) -> None:
        """Replace the column `value` by one of numbers."""
        rows = pa.table({"value": pa.array([7], pa.int64())})
        deltalake.write_deltalake(str(self.root), rows, mode="overwrite", schema_mode="overwrite")

    def widen(self, column: str) -> None:
        """Let an empty table have numbers of 64 bits in this column."""
        fields = [each.with_type(pa.int64()) if each.name == column else each for each in self._columns]
        rows = pa.schema(fields).empty_table()
        deltalake.write_deltalake(str(self.root), rows, mode="overwrite", schema_mode="overwrite")

    def drop(self) -> None:
        """Drop the table with its files."""
        shutil.rmtree(self.root)

    def replace(self) -> None:
        """Drop the table with its files, and create another one in its place."""
        self.drop()
        DeltaLake(self.root.parent, self._columns).root.rename(self.root)

    def generations(self) -> list[int]:
        """Return the generations in the table's log, in the order of its versions."""
        logged = [each.read_text() for each in sorted(Path(self.root, "_delta_log").glob("*.json"))]
        actions = [json.loads(line) for text in logged for line in text.splitlines()]
        marks = [action["txn"] for action in actions if "txn" in action]
        return [mark["version"] for mark in marks if "/" not in mark["appId"]]

    def back_up(self, directory: Path) -> None:
        """Copy the table to a new directory."""
        shutil.copytree(self.root, directory)

    def restore(self, directory: Path) -> None:
        """Replace the table by that copy."""
        shutil.rmtree(self.root)
        shutil.copytree(directory, self.root)


class IcebergLake(_OfFiles):
    """A table in a warehouse of its own, with a catalog in SQLite beside it, or in another database."""

    kind = "Iceberg"
    NAME: ClassVar[str] = "shop.orders"

    def __init__(
        self,
        directory: Path,
        columns: pa.Schema = COLUMNS,
        *,
        catalog_url: str | None = None,
        url_env: str | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of pyiceberg's `create_table`. `url_env` has the URL for the sink, if it is given."""
        self._url_env = url_env
        self._base = directory / unique("iceberg")
        self.root = self._base / "warehouse"
        self.root.mkdir(parents=True)
        self.url = catalog_url or f"sqlite:///{self._base / 'catalog.db'}"
        self.catalog_name = unique("catalog")
        self._columns = columns
        catalog = self.catalog()
        catalog.create_namespace("shop")
        catalog.create_table(self.NAME, columns, **options)
        catalog.close()

    def catalog(self) -> Any:
        """Return pyiceberg's catalog, which waits for SQLite's lock as the sink does."""
        uri = f"{self.url}?timeout=60" if self.url.startswith("sqlite") else self.url
        return pyiceberg_catalogs.SqlCatalog(self.catalog_name, **{"uri": uri, "warehouse": f"file://{self.root}"})

    def open(self) -> Any:
        """Return the table, for the library's calls."""
        return self.catalog().load_table(self.NAME)

    @property
    def place(self) -> LakePlace:
        url = self.url if self._url_env is None else None
        return LakePlace(None, self.NAME, Catalog(self.catalog_name, url, self._url_env))

    @property
    def options(self) -> dict[str, str]:
        return {
            "dual.table": f"iceberg:{self.NAME}",
            "dual.catalog.name": self.catalog_name,
            **({"dual.catalog.url": self.url} if self._url_env is None else {"dual.catalog.urlEnv": self._url_env}),
        }

    @property
    def directory(self) -> Path:
        return self.root / "shop" / "orders" / "data"

    def read(self) -> pa.Table:
        return self.open().scan().to_arrow()

    def append(self, rows: pa.Table) -> None:
        self.open().append(rows)

    def rewrite_on_main(self) -> None:
        """Compact the table, and forget nothing."""
        table = self.open()
        table.overwrite(table.scan().to_arrow())

    def rewrite(self) -> None:
        self.rewrite_on_main()
        table = self.open()
        current = table.current_snapshot().snapshot_id
        expired = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != current]
        table.maintenance.expire_snapshots().by_ids(expired).commit()
        for name in self.files() - self.named():
            (self.directory / name).unlink()

    def named(self) -> set[str]:
        """Return the data files that readers need."""
        return {task.file.file_path.rpartition("/")[2] for task in self.open().scan().plan_files()}

    def retype(self) -> None:
        with self.open().update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("value")
        from pyiceberg.types import LongType

        with self.open().update_schema() as update:
            update.add_column("value", LongType())

    def widen(self, column: str) -> None:
        from pyiceberg.types import LongType

        with self.open().update_schema() as update:
            update.update_column(column, LongType())

    def drop(self) -> None:
        self.catalog().drop_table(self.NAME)
        shutil.rmtree(self.root)

    def replace(self) -> None:
        self.drop()
        catalog = self.catalog()
        catalog.create_table(self.NAME, self._columns)

    def generations(self) -> list[int]:
        found = [each.summary.additional_properties for each in self.open().snapshots()]
        return [int(each["dualwrite.generation"]) for each in found if "dualwrite.generation" in each]

    def back_up(self, directory: Path) -> None:
        shutil.copytree(self._base, directory)

    def restore(self, directory: Path) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(directory / "warehouse", self.root)
        copy_database(directory / "catalog.db", self._base / "catalog.db")

    def pointer(self) -> str:
        """Return the location of the current metadata file."""
        with sa.create_engine(self.url).connect() as connection:
            return str(
                connection.execute(
                    sa.text("SELECT metadata_location FROM iceberg_tables WHERE catalog_name = :name"),
                    {"name": self.catalog_name},
                ).scalar_one()
            )


LakeTable: TypeAlias = DeltaLake | IcebergLake
KINDS: Final[dict[str, type[DeltaLake] | type[IcebergLake]]] = {"delta": DeltaLake, "iceberg": IcebergLake}


class UnreliableLog:
    """A log whose commits claim to have failed."""

    has_effect = True

    def __init__(self, place: LakePlace, sink_id: str) -> None:
        self._log = open_log(place, sink_id)

    def read(self) -> LakeState:
        return self._log.read()

    def add(self, state: LakeState, mark: Mark, files: Any) -> Exception | None:
        if self.has_effect:
            self._log.add(state, mark, files)
        return OSError("no answer")

    def flush(self, state: LakeState) -> bool:
        return self._log.flush(state)

    def file_names(self, state: LakeState) -> set[str]:
        return self._log.file_names(state)

    def kept_names(self, state: LakeState) -> set[str]:
        return self._log.kept_names(state)
