"""The sink's options, parsed and validated once, before any transaction exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class TxnMode(Enum):
    """`txn.mode`: how a prepared transaction is completed."""

    AUTO = "auto"
    KIP939 = "kip939"
    RESUME = "resume"


class OnNewCheckpoint(Enum):
    """`onNewCheckpoint`: what to do when the sink is known with another query id."""

    FAIL = "fail"
    ADOPT = "adopt"


class DualMode(Enum):
    """`dual.mode`: how staged rows go into the table."""

    INSERT = "insert"
    UPSERT = "upsert"


@dataclass(frozen=True)
class DualTable:
    """`dual.*`: a table that is written in the decision transaction."""

    table: str
    """Its name, with `schema.` in front where it has one."""
    columns: tuple[str, ...] | None
    """Columns of the DataFrame and of the table; None: all that are not Kafka's."""
    mode: DualMode
    key: tuple[str, ...] | None
    """`dual.key`: what an upsert goes by; None: the table's primary key."""


@dataclass(frozen=True)
class StoreOptions:
    """`commitStore.*`: where decisions are kept."""

    url: str | None = field(repr=False)
    url_env: str | None
    """The name of an environment variable with the URL, which keeps the secret out of plans and logs."""
    schema: str | None
    create_tables: bool = True


@dataclass(frozen=True)
class SinkOptions:
    """What the caller asked for. Picklable; its repr has no secrets."""

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
    """None where Spark does not tell; then no digest of the offsets file is kept."""
    job_id: str | None
    """Batch jobs only."""
