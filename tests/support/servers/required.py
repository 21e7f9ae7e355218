"""Whether a server that cannot run here fails its tests or skips them."""

from __future__ import annotations

import os
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError

REQUIRE_SERVERS: Final = "DUALWRITE_REQUIRE_SERVERS"


class ProgramMissingError(ServerUnavailableError):
    """The machine lacks a program that the tests cannot fetch, such as the Go compiler."""


def servers_are_required() -> bool:
    """Return whether a missing server fails its tests instead of skipping them (`DUALWRITE_REQUIRE_SERVERS=1`)."""
    return os.environ.get(REQUIRE_SERVERS) == "1"
