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


def free_port(count: int = 1) -> int:
    """Return the first of so many free ports of 127.0.0.1 in a row, none of them twice in this process.

    Another process may bind one first. Raises ServerUnavailableError if no free ports were found.
    """
    for port in random.sample(range(_FIRST, _LAST - count), 100):
        wanted = range(port, port + count)
        if _given_out.isdisjoint(wanted) and all(map(_is_free, wanted)):
            _given_out.update(wanted)
            return port
    raise ServerUnavailableError(f"no free port between {_FIRST} and {_LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
