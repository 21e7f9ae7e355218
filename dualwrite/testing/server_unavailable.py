"""The error of a server that cannot be started on this machine."""

from __future__ import annotations


class ServerUnavailableError(RuntimeError):
    """The server cannot run on this machine; the message says why, and what would help."""
