"""Ports for servers that cannot be told to take a free one by themselves."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError

_FIRST: Final = 15000
_LAST: Final = 32000  # below the range from which systems take ports of outgoing connections


def free_port() -> int:
    """One of 127.0.0.1 that nobody has now; somebody may be faster. Raises ServerUnavailableError."""
    for port in random.sample(range(_FIRST, _LAST), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerUnavailableError(f"no free port between {_FIRST} and {_LAST}")
