"""How the JVMs of Spark's tests are started: without costly optimisations that pay off later.

Where `tests.support.spark_classes` has left its file, they find most classes in it ready to use.
"""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

from spark_sink.java import find_java
from tests.support.servers.cache import cache_directory

QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
QUIET: Final = "-Xlog:disable"
"""Otherwise a JVM that cannot use the file says so on standard output."""

CLASSES_FILE: Final = "classes.jsa"


def driver_options() -> str:
    """Options of a driver's JVM."""
    file = cache_directory() / classes_name() / CLASSES_FILE
    return f"{QUICK} -XX:SharedArchiveFile={file} {QUIET}" if file.is_file() else QUICK


def classes_name() -> str:
    """Return the name of the directory in the cache, by the file's inputs: the JVM's build and its jars' paths."""
    java = find_java(os.environ).home.resolve()
    release = java / "release"
    spark = find_spec("pyspark")
    parts = [
        str(java),
        release.read_text() if release.is_file() else "",
        version("pyspark"),
        str(spark and spark.origin),
    ]
    return f"spark-classes-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"
