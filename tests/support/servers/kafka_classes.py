"""The class-data archive of Kafka (a JVM's classes, kept in a file), with which a broker starts in half the time.

`tests/support/make_kafka_classes.py` creates the archive. Without one, brokers start as usual.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from tests.support.servers.cache import cache_directory

CLASSES_FILE: Final = "classes.jsa"
_QUIET: Final = "-Xlog:disable"  # otherwise a JVM that cannot use the file writes about it to standard output


def classes_options(java: str, jars: Path) -> tuple[str, ...]:
    """Return the JVM options that use the archive for `jars`; none if there is no archive."""
    file = cache_directory() / classes_name(java, jars) / CLASSES_FILE
    return (f"-XX:SharedArchiveFile={file}", _QUIET) if file.is_file() else ()


def classes_name(java: str, jars: Path) -> str:
    """Return the archive's directory name in the cache.

    It depends on the JVM's build and on the jars, because a JVM rejects an archive made for others.
    """
    program = Path(java).resolve()
    release = program.parents[1] / "release"
    parts = [
        str(program),
        release.read_text() if release.is_file() else "",
        str(jars.resolve()),
        str(jars.stat().st_mtime_ns),
    ]
    return f"{jars.name}-classes-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"
