"""Kafka's classes as a JVM has them in memory, kept in a file: with it, a broker starts with half of the work.

Where nobody has made the file, brokers start without it. This project's tests make it:
`tests/support/kafka_classes.py`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from dualwrite.testing.cache import cache_directory

CLASSES_FILE: Final = "classes.jsa"
_QUIET: Final = "-Xlog:disable"  # else a JVM that cannot use the file says so on standard output


def classes_options(java: str, jars: Path) -> tuple[str, ...]:
    """Options of a JVM that runs `jars`; none where there is no file."""
    file = cache_directory() / classes_name(java, jars) / CLASSES_FILE
    return (f"-XX:SharedArchiveFile={file}", _QUIET) if file.is_file() else ()


def classes_name(java: str, jars: Path) -> str:
    """Of the directory in the cache, by what the file depends on: a JVM compares its own build, and its jars."""
    program = Path(java).resolve()
    release = program.parents[1] / "release"
    parts = [
        str(program),
        release.read_text() if release.is_file() else "",
        str(jars.resolve()),
        str(jars.stat().st_mtime_ns),
    ]
    return f"{jars.name}-classes-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"
