"""kafkajs while its broker is killed."""

from __future__ import annotations

from tests.interop.killed_brokers import killable
from tests.interop.program_cases import KilledPrograms

__all__ = ["TestKilledBroker", "killable"]


class TestKilledBroker(KilledPrograms):
    """The cases of every program."""
