"""Skip or fail a test whose server cannot run on this machine."""

from __future__ import annotations

from typing import NoReturn

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.required import ProgramMissingError, servers_are_required


def skip(error: ServerUnavailableError) -> NoReturn:
    """Skip the test with the reason in `error`; fail it if `DUALWRITE_REQUIRE_SERVERS` requires the server.

    A missing program, such as Node.js or Go, always skips: a machine without it cannot run its clients.
    """
    if servers_are_required() and not isinstance(error, ProgramMissingError):
        raise error
    pytest.skip(str(error))
