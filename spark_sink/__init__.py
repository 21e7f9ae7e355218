"""An exactly-once PySpark sink into Kafka and, in the same commit, into a table; and a Kafka source without a JVM.

Open `face.py` first: Spark calls it. From there, `driver/protocol.py` has the protocol of a batch, `attempt/`
the task's side of it, `store/` the database that decides, and `reading/` the source. The sink may import `dualwrite`'s
producers and admin client, and from `dualwrite.recipes` only `core`, `sql` and `sqlalchemy`.

The public names are imported when they are first used, so a process that needs only an error or a Java loads no Spark.
"""
# ruff: noqa: I001 - one import per module; importing each name as itself exports it

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_sink.errors import (
        AttemptCondemnedError as AttemptCondemnedError,
        BatchLostError as BatchLostError,
        CheckpointMismatchError as CheckpointMismatchError,
        CommitLogError as CommitLogError,
        DecisionUnknownError as DecisionUnknownError,
        DualTableError as DualTableError,
        JavaError as JavaError,
        SinkError as SinkError,
        SinkFencedError as SinkFencedError,
        SinkOptionError as SinkOptionError,
        SourceDataLossError as SourceDataLossError,
        SourceReadError as SourceReadError,
        StoreUnavailableError as StoreUnavailableError,
        StoreWentBackError as StoreWentBackError,
    )
    from spark_sink.face import (
        DualWriteKafka as DualWriteKafka,
        register as register,
    )
    from spark_sink.foreach_batch import dualwrite_batch as dualwrite_batch
    from spark_sink.java import ensure_java as ensure_java
    from spark_sink.reading.source import DualWriteKafkaSource as DualWriteKafkaSource

_MODULES: Final = {
    "DualWriteKafka": "spark_sink.face",
    "DualWriteKafkaSource": "spark_sink.reading.source",
    "AttemptCondemnedError": "spark_sink.errors",
    "BatchLostError": "spark_sink.errors",
    "CheckpointMismatchError": "spark_sink.errors",
    "CommitLogError": "spark_sink.errors",
    "DecisionUnknownError": "spark_sink.errors",
    "StoreUnavailableError": "spark_sink.errors",
    "StoreWentBackError": "spark_sink.errors",
    "DualTableError": "spark_sink.errors",
    "JavaError": "spark_sink.errors",
    "SinkError": "spark_sink.errors",
    "SinkFencedError": "spark_sink.errors",
    "SinkOptionError": "spark_sink.errors",
    "SourceDataLossError": "spark_sink.errors",
    "SourceReadError": "spark_sink.errors",
    "dualwrite_batch": "spark_sink.foreach_batch",
    "ensure_java": "spark_sink.java",
    "register": "spark_sink.face",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Return a public name from the module that has it (PEP 562)."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
