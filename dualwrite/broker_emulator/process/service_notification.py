"""Tells the service manager that started this process how it is (sd_notify(3)); nobody, where none asked for it."""

from __future__ import annotations

import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

_VARIABLE: Final = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Send one state. A service manager that cannot be reached is no reason not to serve."""
    address = os.environ.get(_VARIABLE)
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect(address)
            manager.sendall(state.encode())
    except OSError:
        return
