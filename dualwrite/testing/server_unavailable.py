"""Why a server that a test needs could not be started here."""

from __future__ import annotations

import os

REQUIRE_SERVERS = "DUALWRITE_REQUIRE_SERVERS"


class ServerUnavailableError(RuntimeError):
    """The server cannot run on this machine; the message says plainly why and what would help."""


class ProgramMissingError(ServerUnavailableError):
    """The machine lacks a program that nothing here can fetch, such as Go's compiler."""


def servers_are_required() -> bool:
    """Whether a missing server must fail the tests instead of skipping them (`DUALWRITE_REQUIRE_SERVERS=1`)."""
    return os.environ.get(REQUIRE_SERVERS) == "1"
