"""What a fixture does where what it needs cannot run here."""

from __future__ import annotations

from typing import NoReturn

import pytest

from dualwrite.testing.server_unavailable import ProgramMissingError, ServerUnavailableError, servers_are_required


def skip(error: ServerUnavailableError) -> NoReturn:
    """Skip the test with the plain reason; where everything is required that the machine can run, fail it.

    A machine without Node.js or Go cannot run their clients. One that has them can.
    """
    if servers_are_required() and not isinstance(error, ProgramMissingError):
        raise error
    pytest.skip(str(error))
