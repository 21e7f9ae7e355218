"""confluent-kafka while its broker is killed."""

from __future__ import annotations

from tests.interop.killed_brokers import killable
from tests.interop.killed_copy import KilledCopyCases

__all__ = ["TestKilledBroker", "killable"]


class TestKilledBroker(KilledCopyCases):
    """With the fixtures of this folder."""
