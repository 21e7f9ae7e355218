"""Telling a Spark session about the formats of this package."""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `dualwrite-kafka` and `dualwrite-kafka-source` known to this session, of Spark Classic or Spark Connect.

    The package must be installed wherever the session's driver and executors run. Warns where a local session takes
    another Python than this one for its workers.
    """
    from spark_sink.datasource import DualWriteKafka
    from spark_sink.reading.source import DualWriteKafkaSource

    context = getattr(spark, "_sc", None)  # Spark Connect has none, and its workers are not on this machine
    if context is not None and context.master.startswith("local"):
        _warn_of_another_python(context.pythonExec)
    spark.dataSource.register(DualWriteKafka)
    spark.dataSource.register(DualWriteKafkaSource)


def _warn_of_another_python(named: str) -> None:
    """By its directory: the interpreters of a virtual environment are links to one that has other packages."""
    found = shutil.which(named)
    if found is None or Path(found).parent != Path(sys.executable).parent:
        warnings.warn(
            f"Spark runs its Python workers by {named!r}, which is {found or 'not in the PATH'}, and this is "
            f'{sys.executable}: where the other one has no dualwrite, the first batch fails with "No module named '
            "'spark_sink'\". Activate the environment, or set PYSPARK_PYTHON to its Python before the session is made",
            stacklevel=3,
        )
