"""For a process that is nothing but a broker."""

from __future__ import annotations

import logging
import resource
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec

logger = logging.getLogger(__name__)

_ENOUGH_DESCRIPTORS = 1024


def start_lean() -> None:
    """To be called before the broker is imported.

    Where hypothesis is installed, kio imports it to register test strategies for its types: half of a broker's start,
    for what nobody asks for in its own process.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    _load_only_the_checksum()


def _load_only_the_checksum() -> None:
    """Load crc32c without what its package loads besides: a command line, and `importlib.metadata` with all of `email`
    to read its own version, together a tenth of a broker's start.
    """
    spec = find_spec("crc32c")
    if spec is None or "crc32c" in sys.modules:
        return
    package = sys.modules["crc32c"] = module_from_spec(spec)  # never run
    try:
        package.crc32c = import_module("crc32c._crc32c").crc32c  # type: ignore[attr-defined]
    except (ImportError, AttributeError):  # a release that is made otherwise
        del sys.modules["crc32c"]


def take_all_descriptors() -> None:
    """Let the process have as many files and connections as the system allows it, as a JVM does.

    Beyond them connections are closed without a word, so a small number is said beforehand.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        allowed = most
    except (OSError, ValueError):  # some systems name a limit that they do not grant
        pass
    if 0 <= allowed < _ENOUGH_DESCRIPTORS:
        logger.warning("no more than %d files and connections can be open at once: see ulimit -n", allowed)
