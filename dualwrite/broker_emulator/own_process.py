"""For a process that is nothing but a broker."""

from __future__ import annotations

import logging
import resource
import sys

logger = logging.getLogger(__name__)

_ENOUGH_DESCRIPTORS = 1024


def start_lean() -> None:
    """To be called before the broker is imported.

    Where hypothesis is installed, kio imports it to register test strategies for its types: half of a broker's start,
    for what nobody asks for in its own process.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]


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
