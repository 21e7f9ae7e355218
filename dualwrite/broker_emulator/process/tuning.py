"""Tuning of a process that only runs a broker: fast imports, and as many file descriptors as possible."""

from __future__ import annotations

import gc
import logging
import resource
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Final

logger = logging.getLogger(__name__)

_ENOUGH_DESCRIPTORS = 1024
_OLDEST_GENERATION: Final = 2
_LONG_COLLECTION_S: Final = 0.01


def start_lean() -> None:
    """Avoid slow imports that a broker's own process does not need; call before the broker is imported.

    If hypothesis is installed, kio imports it to register test strategies for its types, which takes half of the
    broker's start-up time.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    _load_only_the_checksum()


def _load_only_the_checksum() -> None:
    """Load crc32c without the rest of its package, which takes a tenth of the broker's start-up time.

    The rest is a command line, and `importlib.metadata` with all of `email`, to read its own version.
    """
    spec = find_spec("crc32c")
    if spec is None or "crc32c" in sys.modules:
        return
    package = sys.modules["crc32c"] = module_from_spec(spec)  # never executed
    try:
        package.crc32c = import_module("crc32c._crc32c").crc32c  # type: ignore[attr-defined]
    except (ImportError, AttributeError):  # a release with another structure
        del sys.modules["crc32c"]


def settle_memory() -> None:
    """Exempt all existing objects from garbage collection; call once the broker has started.

    The modules, message schemas and recovered logs live as long as the process, and scanning them for garbage again and
    again would stop the broker for 50 ms and more each time. Later objects are exempt too, once there are so many that
    scanning them takes long.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_LongCollections().watch)


class _LongCollections:
    """Exempts the objects that survived a long collection from later collections.

    Such an object is still freed when the last reference to it goes; only a cycle that becomes garbage later is never
    found.
    """

    def __init__(self) -> None:
        self._began_s = 0.0

    def watch(self, phase: str, details: Mapping[str, int]) -> None:
        """Measure a collection; the collector calls this before and after each one."""
        if details["generation"] < _OLDEST_GENERATION:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        elif time.thread_time() - self._began_s > _LONG_COLLECTION_S:
            gc.freeze()


def take_all_descriptors() -> None:
    """Raise the limit of open files and connections as far as the system allows, as a JVM does.

    Connections beyond the limit are closed without a message, so a low limit is logged at start.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        allowed = most
    except (OSError, ValueError):  # some systems report a hard limit that they do not grant
        pass
    if 0 <= allowed < _ENOUGH_DESCRIPTORS:
        logger.warning("at most %d files and connections can be open at the same time: see ulimit -n", allowed)
