"""Parse and validate the sink's options, once, before any transaction exists."""

from __future__ import annotations

import os
import pkgutil
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from dualwrite.config import BOUNDED_TRANSACTION_TIMEOUT_MS
from dualwrite.decisions.database_safety import NAMES as WEAKNESSES
from spark_sink.errors import SinkOptionError
from spark_sink.kafka_settings import checked_settings
from spark_sink.lake.place import ICEBERG, Catalog, LakePlace
from spark_sink.option_values import OptionNames, OptionValues
from spark_sink.store.topic.topic_url import is_topic, topic_url

DEFAULT_COMMIT_PARALLELISM: Final = 16
DEFAULT_COMMIT_RETRIES: Final = 5
DEFAULT_RETENTION_BATCHES: Final = 100
DEFAULT_STORE_TIMEOUT_MS: Final = 300_000
DEFAULT_STORE_CONNECT_TIMEOUT_MS: Final = 10_000


class TxnMode(Enum):
    """`txn.mode`: how a prepared transaction is completed."""

    AUTO = "auto"
    KIP939 = "kip939"
    RESUME = "resume"


class OnNewCheckpoint(Enum):
    """`onNewCheckpoint`: how to proceed if the sink belongs to another query id."""

    FAIL = "fail"
    ADOPT = "adopt"


class OnOrphans(Enum):
    """`onOrphans`: how to treat open transactions of the sink that no attempt in the store has."""

    WARN = "warn"
    ABORT = "abort"


class RequireDigest(Enum):
    """`requireDigest`: how to proceed without a digest of a batch's input, if the checkpoint cannot be read."""

    FALSE = "false"
    """Skip a batch that was decided before, although its input is not compared."""
    REPLAY = "replay"
    """Warn, and refuse only to skip a batch that was decided before."""
    TRUE = "true"
    """Refuse every batch."""


class DualMode(Enum):
    """`dual.mode`: how staged rows are written to the table."""

    INSERT = "insert"
    UPSERT = "upsert"


@dataclass(frozen=True)
class DualTable:
    """`dual.*`: a table that gets the rows of each decision."""

    table: str
    """The option: a table of the store's database, `delta:` and a directory, or `iceberg:` and a catalog's table."""
    columns: tuple[str, ...] | None
    """Columns of the DataFrame and of the table; None: all that are not sent to Kafka."""
    mode: DualMode
    key: tuple[str, ...] | None
    """`dual.key`: the key of an upsert; None: the table's primary key."""
    lake: LakePlace | None = None
    """Where the Delta or Iceberg table is; None for a table of the store's database."""


@dataclass(frozen=True)
class StoreOptions:
    """`commitStore.*`: the store of decisions."""

    url: str | None = field(repr=False)
    url_env: str | None
    """The name of an environment variable with the URL, which keeps a password out of plans and logs."""
    schema: str | None
    create_tables: bool = True
    timeout_ms: int = DEFAULT_STORE_TIMEOUT_MS
    """Limit for the silence of the database after a statement, and for its having no free connection."""
    connect_timeout_ms: int = DEFAULT_STORE_CONNECT_TIMEOUT_MS
    accept: tuple[str, ...] = ()
    """The accepted weaknesses of the database, by their names in `docs/databases.md`."""


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options. Picklable; its repr has no secrets."""

    sink_id: str
    kafka: Mapping[str, str] = field(repr=False)
    """Producer settings by Kafka's names, without the prefix `kafka.`; has `bootstrap.servers`."""
    topic: str | None
    include_headers: bool
    store: StoreOptions
    txn_mode: TxnMode
    txn_timeout_ms: int
    on_new_checkpoint: OnNewCheckpoint
    dual: DualTable | None
    commit_parallelism: int
    commit_retries: int
    retention_batches: int
    checkpoint_location: str | None
    """The option of the writer. None: `find_checkpoint` finds Spark's location."""
    job_id: str | None
    """Batch jobs only."""
    query_name: str | None = None
    """Spark's own option."""
    require_digest: RequireDigest = RequireDigest.REPLAY
    on_orphans: OnOrphans = OnOrphans.WARN
    job_version: int | None = None
    """Batch jobs only: a run of the job is written only if its version is higher than all before."""
    telemetry_setup: str | None = None
    """`package.module:function` that makes the metrics of a process visible."""


def parse(options: Mapping[str, object]) -> SinkOptions:
    """Parse and check the options of a writer. Names may be in any case: Spark passes them in lower case.

    Raises SinkOptionError for an unknown option (with the nearest name), one that the sink sets itself, a missing
    option, or an invalid value. Its text contains no value that may be secret.
    """
    parsed = _parsed(*_OPTIONS.given(options))
    if is_topic(parsed.store.url):
        check_topic_store(parsed.store, parsed.dual)
    return parsed


def _parsed(own: OptionValues, kafka: dict[str, str]) -> SinkOptions:
    return SinkOptions(
        sink_id=_sink_id(own),
        kafka=checked_settings(kafka),
        topic=own.text("topic"),
        include_headers=own.flag("includeHeaders", False),
        store=_store(own),
        txn_mode=own.one_of("txn.mode", TxnMode.AUTO),
        txn_timeout_ms=own.number("txn.timeoutMs", BOUNDED_TRANSACTION_TIMEOUT_MS, 1),
        on_new_checkpoint=own.one_of("onNewCheckpoint", OnNewCheckpoint.FAIL),
        dual=_dual_table(own),
        commit_parallelism=own.number("commit.parallelism", DEFAULT_COMMIT_PARALLELISM, 1),
        commit_retries=own.number("commit.retries", DEFAULT_COMMIT_RETRIES, 0),
        retention_batches=own.number("store.retentionBatches", DEFAULT_RETENTION_BATCHES, 1),
        checkpoint_location=own.text("checkpointLocation"),
        query_name=own.text("queryName"),
        require_digest=own.one_of("requireDigest", RequireDigest.REPLAY),
        on_orphans=own.one_of("onOrphans", OnOrphans.WARN),
        job_id=_job_id(own),
        job_version=_job_version(own),
        telemetry_setup=_telemetry_setup(own),
    )


_LONGEST_JOB_ID: Final = 200

NAMES: Final = (
    "sinkId",
    "topic",
    "includeHeaders",
    "commitStore.url",
    "commitStore.urlEnv",
    "commitStore.schema",
    "commitStore.createTables",
    "commitStore.timeoutMs",
    "commitStore.connectTimeoutMs",
    "commitStore.accept",
    "txn.mode",
    "txn.timeoutMs",
    "onNewCheckpoint",
    "requireDigest",
    "onOrphans",
    "dual.table",
    "dual.catalog.name",
    "dual.catalog.url",
    "dual.catalog.urlEnv",
    "dual.columns",
    "dual.mode",
    "dual.key",
    "commit.parallelism",
    "commit.retries",
    "store.retentionBatches",
    "jobId",
    "jobVersion",
    "telemetry.setup",
)

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark's own options, which it passes on."""

_WITHOUT_EFFECT: Final = frozenset(
    {"asyncprogresstrackingcheckpointintervalms", "_asyncprogresstrackingoverridesinksupportcheck"}
)
"""Spark's own options that have no effect without asyncProgressTrackingEnabled, which is refused."""

_REFUSED: Final = {
    "path": "start() and save() take no path: set the option topic, or give each row a topic in a column topic",
    "asyncprogresstrackingenabled": (
        "asynchronous progress tracking is refused: with it the input of a batch may change after a failure, and a "
        "batch that was decided before would then be skipped with rows in it that were never written"
    ),
    "subscribe": "subscribe is an option of the source; for a sink, set the option topic, or add a column topic",
    "startingoffsets": "startingOffsets is an option of the source; a sink appends to its topics",
    "dual.catalog.type": (
        "dual.catalog.type is not an option: an Iceberg catalog must be in the tables of a SQLite or PostgreSQL "
        "database, given as dual.catalog.url. REST, Glue, Hive and other catalogs are not supported"
    ),
    "dual.catalog.warehouse": (
        "dual.catalog.warehouse is not an option: the Iceberg table must exist, and its catalog says where it is"
    ),
}
"""Names in lower case, in which all names are compared."""


_OPTIONS: Final = OptionNames(
    NAMES,
    refused=_REFUSED,
    of_spark=_SPARKS_OWN,
    without_effect=_WITHOUT_EFFECT,
    of_kafka=("bootstrap.servers", "compression.type", "linger.ms"),
    client="producer",
)


def _sink_id(own: OptionValues) -> str:
    sink_id = own.text("sinkId")
    if sink_id is None:
        raise SinkOptionError(
            "the option sinkId is missing: a name for this sink that is the same at every start and that no other sink "
            "on the Kafka cluster has. Its transactional ids begin with it"
        )
    if not re.fullmatch(r"[A-Za-z0-9._]{1,100}", sink_id):
        raise SinkOptionError(f"sinkId: {sink_id!r} is not 1 to 100 letters, digits, dots and underscores")
    return sink_id


def _job_id(own: OptionValues) -> str | None:
    job_id = own.text("jobId")
    if job_id is not None and len(job_id) > _LONGEST_JOB_ID:
        raise SinkOptionError(f"jobId has {len(job_id)} characters; at most {_LONGEST_JOB_ID} are allowed")
    return job_id


def _job_version(own: OptionValues) -> int | None:
    if own.text("jobVersion") is None:
        return None
    if own.text("jobId") is None:
        raise SinkOptionError("jobVersion has no effect without jobId, the name of the job whose runs it numbers")
    return own.number("jobVersion", 0, 0, 2**63 - 1)


def _telemetry_setup(own: OptionValues) -> str | None:
    setup = own.text("telemetry.setup")
    if setup is not None:
        try:
            pkgutil.resolve_name(setup)
        except (ImportError, AttributeError, ValueError) as error:
            raise SinkOptionError(
                "telemetry.setup must name a function as package.module:function that the driver's Python can import, "
                f"not {setup!r}: {error}"
            ) from error
    return setup


def _store(own: OptionValues) -> StoreOptions:
    url, url_env = own.text("commitStore.url"), own.text("commitStore.urlEnv")
    if (url is None) == (url_env is None):
        raise SinkOptionError(
            "set either commitStore.url, the SQLAlchemy URL of the database that keeps the decisions (kafka:///topic "
            "if nothing but Kafka is written to), or commitStore.urlEnv, the name of an environment variable with it, "
            "which keeps a password out of Spark's plans and logs"
        )
    if url is not None:
        check_store_url("commitStore.url", url)
    return StoreOptions(
        url=url,
        url_env=url_env,
        schema=own.text("commitStore.schema"),
        create_tables=own.flag("commitStore.createTables", True),
        timeout_ms=own.number("commitStore.timeoutMs", DEFAULT_STORE_TIMEOUT_MS, 1000),
        connect_timeout_ms=own.number("commitStore.connectTimeoutMs", DEFAULT_STORE_CONNECT_TIMEOUT_MS, 1000),
        accept=_accepted(own),
    )


def _accepted(own: OptionValues) -> tuple[str, ...]:
    accepted = own.names("commitStore.accept") or ()
    unknown = sorted(set(accepted) - WEAKNESSES)
    if unknown:
        raise SinkOptionError(f"commitStore.accept: {unknown[0]!r} is not one of {', '.join(sorted(WEAKNESSES))}")
    return accepted


def check_store_url(name: str, url: str) -> None:
    """Raise SinkOptionError unless this can be the URL of a store that several processes share. Never quotes it."""
    if is_topic(url):
        topic_url(name, url)
        return
    if url.startswith("jdbc:"):
        raise SinkOptionError(
            f"{name} must be a SQLAlchemy URL, such as postgresql+psycopg://host/name, not a JDBC URL"
        )
    if not re.match(r"[a-z0-9_]+(\+[a-z0-9_]+)?://", url):
        raise SinkOptionError(f"{name} is not a SQLAlchemy URL, such as postgresql+psycopg://user@host/name")
    if url.startswith("sqlite") and (re.fullmatch(r"[a-z0-9_+]+:///?", url) or ":memory:" in url):
        raise SinkOptionError(f"{name} is a SQLite database in memory, which only one process can use; give a file")
    _check_sqlite_path(name, url)


def store_url(options: StoreOptions) -> str:
    """Return the URL of the store. Raises SinkOptionError if there is none, or if it cannot be one."""
    if options.url is not None:
        return options.url
    if options.url_env is None:
        raise SinkOptionError("commitStore.url or commitStore.urlEnv is required; nothing was written")
    url = os.environ.get(options.url_env)
    if url is None:
        raise SinkOptionError(
            f"commitStore.urlEnv={options.url_env}, but this process has no such environment variable; nothing was "
            f"written: set it for the driver and, with spark.executorEnv.{options.url_env}, for the executors"
        )
    check_store_url(f"commitStore.urlEnv={options.url_env}", url)
    return url


NO_SQL: Final = (
    "a commit store in a topic (commitStore.url=kafka://...) runs no SQL; nothing was written. dual.table, and a "
    "function for dualwrite_batch, need the commit store in the database that has their tables: set commitStore.url to "
    "that database"
)


def check_topic_store(store: StoreOptions, dual: DualTable | None) -> None:
    """Raise SinkOptionError for options that have no effect, or cannot work, with a store in a topic."""
    if dual is not None:
        raise SinkOptionError(NO_SQL)
    for name, value in (("commitStore.schema", store.schema), ("commitStore.accept", store.accept)):
        if value:
            raise SinkOptionError(
                f"{name} has no effect with a commit store in a topic (commitStore.url=kafka://...); nothing was "
                "written: omit it, or set commitStore.url to a database"
            )


def _dual_table(own: OptionValues) -> DualTable | None:
    table, columns = own.text("dual.table"), own.names("dual.columns")
    mode, key = own.one_of("dual.mode", DualMode.INSERT), own.names("dual.key")
    if table is None:
        _check_unused(own, ("dual.columns", "dual.mode", "dual.key", *_CATALOG), "without dual.table")
        return None
    if key is not None and mode is not DualMode.UPSERT:
        raise SinkOptionError("dual.key has no effect without dual.mode=upsert")
    if not table.startswith(ICEBERG):
        _check_unused(own, _CATALOG, "without dual.table=iceberg:...")
    lake = _lake_place(own, table)
    if lake is not None and mode is DualMode.UPSERT:
        raise SinkOptionError(
            f"dual.mode=upsert is for tables of a database: the rows are appended to {lake.article} {lake.kind} table"
        )
    return DualTable(table, columns, mode, key, lake=lake)


def _check_unused(own: OptionValues, names: tuple[str, ...], without: str) -> None:
    unused = [name for name in names if own.text(name) is not None]
    if unused:
        raise SinkOptionError(f"{unused[0]} has no effect {without}")


_CATALOG: Final = ("dual.catalog.name", "dual.catalog.url", "dual.catalog.urlEnv")
_DELTA: Final = "delta:"
"""The prefix of a Delta table in `dual.table`."""
_LONGEST_DIRECTORY: Final = 1000


def _lake_place(own: OptionValues, table: str) -> LakePlace | None:
    if table.startswith(_DELTA):
        return LakePlace(_delta_directory(table.removeprefix(_DELTA)))
    if table.startswith(ICEBERG):
        return LakePlace(None, _iceberg_table(table.removeprefix(ICEBERG)), _catalog(own))
    return None


def _delta_directory(given: str) -> str:
    """Return the directory of a Delta table, given as a path or as a URL with `file:`."""
    url = urlsplit(given)
    directory = unquote(url.path) if url.scheme == "file" and url.netloc in ("", "localhost") else given
    if not directory.startswith("/"):
        raise SinkOptionError(
            f"dual.table: {given!r} is not an absolute path, as in delta:/lake/orders. A Delta table must be a "
            "directory that driver and executors have under the same path; object stores (s3:, abfss:, gs:, hdfs:) "
            "are not supported"
        )
    if "%" in directory:
        raise SinkOptionError(f"dual.table: libraries for Delta tables disagree on a path with % ({directory!r})")
    if len(directory) > _LONGEST_DIRECTORY:
        raise SinkOptionError(f"dual.table: the path has more than {_LONGEST_DIRECTORY} characters")
    return posixpath.normpath(directory)


def _iceberg_table(given: str) -> str:
    if not re.fullmatch(r"[^./]+(\.[^./]+)+", given):
        raise SinkOptionError(
            f"dual.table: {given!r} is not the name of an Iceberg table with its namespace, as in iceberg:shop.orders"
        )
    return given


def _catalog(own: OptionValues) -> Catalog:
    url, url_env = own.text("dual.catalog.url"), own.text("dual.catalog.urlEnv")
    if (url is None) == (url_env is None):
        raise SinkOptionError(
            "an Iceberg table needs its catalog: set either dual.catalog.url, the SQLAlchemy URL of the SQLite or "
            "PostgreSQL database that has the table iceberg_tables, or dual.catalog.urlEnv, the name of an environment "
            "variable with it"
        )
    if url is not None:
        check_catalog_url("dual.catalog.url", url)
        if _has_password(url):
            raise SinkOptionError(
                "dual.catalog.url has a password. The commit store keeps the URL, with which `dualwrite spark recover` "
                "finds the catalog: put it into an environment variable and name that in dual.catalog.urlEnv"
            )
    return Catalog(own.text("dual.catalog.name") or "default", url, url_env)


def check_catalog_url(name: str, url: str) -> None:
    """Raise SinkOptionError unless this can be the URL of an Iceberg catalog in a database. Never quotes it."""
    if not re.match(r"(sqlite|postgresql)(\+[a-z0-9_]+)?://", url):
        raise SinkOptionError(
            f"{name} is not a SQLAlchemy URL of SQLite or PostgreSQL, such as postgresql+psycopg://host/name or "
            "sqlite:////lake/catalog.db; nothing was written. Only Iceberg catalogs in such a database are supported: "
            "REST, Glue, Hive and other catalogs are not"
        )
    _check_sqlite_path(name, url)


def _check_sqlite_path(name: str, url: str) -> None:
    """Raise SinkOptionError for a relative path: the processes of a sink have different working directories."""
    if url.startswith("sqlite") and not re.match(r"sqlite(\+[a-z0-9_]+)?:///(file:)?(/|[A-Za-z]:[/\\])", url):
        raise SinkOptionError(
            f"{name}: the file of a SQLite database must be an absolute path, as in sqlite:////lake/c.db; "
            "nothing was written"
        )


def _has_password(url: str) -> bool:
    parts = urlsplit(url)
    return parts.password is not None or any("password" in name.lower() for name, _ in parse_qsl(parts.query))
