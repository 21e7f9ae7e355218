"""Administration with kafka-go."""

from __future__ import annotations

from tests.interop.program_cases import AdministrationPrograms


class TestAdministration(AdministrationPrograms):
    """The cases of every program."""
