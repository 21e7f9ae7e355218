"""Spark sessions for tests: on this machine, quick to start, with little memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from spark_sink import ensure_java

_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"

SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",  # no time goes into names of this host
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": _QUICK_JVM,
    "spark.driver.memory": "600m",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.warehouse.dir": "/nowhere",  # else a directory appears where the tests run
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def prepare_environment() -> None:
    """Of this process, for the JVM that it starts and for Python workers: executors take `python3` of the PATH else."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LAUNCHER_OPTS"] = _QUICK_JVM
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def start_session(master: str = "local[2,2]", **settings: str) -> SparkSession:
    """A new session; `settings` have underscores for dots. A task may fail once.

    The JVM of a process lives on when a session is stopped: the next one starts within a second.
    """
    prepare_environment()
    builder = SparkSession.builder.master(master).appName("dualwrite tests")
    for name, value in {**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
