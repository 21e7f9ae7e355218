"""Free ports for servers that cannot choose one themselves."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError

_FIRST: Final = 15000
_LAST: Final = 32000  # below the range that systems use for outgoing connections
_given_out: Final[set[int]] = set()
"""The ports that this process has returned: a server that got one may not have bound it yet."""


def free_port() -> int:
    """Return a free port of 127.0.0.1, never the same one twice in this process.

    Another process may bind it first. Raises ServerUnavailableError if no free port was found.
    """
    for port in random.sample(range(_FIRST, _LAST), 100):
        if port in _given_out:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given_out.add(port)
            return port
    raise ServerUnavailableError(f"no free port between {_FIRST} and {_LAST}")
