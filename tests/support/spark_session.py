"""Spark sessions for tests: on this machine, quick to start, with little memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_sink import ensure_java
from tests.support.spark_jvm import QUICK, driver_options

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",  # no time goes into names of this host
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.warehouse.dir": "/nowhere",  # else a directory appears where the tests run
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_WORKERS_PYTHON: Final = Path(__file__).with_name("spark_python")


def settings() -> dict[str, str]:
    """The settings of every session."""
    return {**_SETTINGS, "spark.driver.extraJavaOptions": driver_options()}


def prepare_environment() -> None:
    """Prepare this process for its JVM and for Python workers: otherwise executors take the PATH's `python3`."""
    ensure_java()
    os.environ["DUALWRITE_SPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(_WORKERS_PYTHON)
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def start_session(master: str = "local[2,2]", **more: str) -> SparkSession:
    """A new session; `more` settings have underscores for dots. A task may fail once.

    The JVM of a process lives on when a session is stopped: the next one starts within a second.
    """
    prepare_environment()
    builder = SparkSession.builder.master(master).appName("dualwrite tests")
    for name, value in {**settings(), **{name.replace("_", "."): value for name, value in more.items()}}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
