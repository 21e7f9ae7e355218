"""Ask the log of a cluster what became of a transaction, and read its records. For one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from dualwrite.client.log.batches import StoredRecord
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.config import ProducerConfig


class LogReader:
    """Reads partitions over the connections of a producer with the same settings."""

    def __init__(self, config: ProducerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config

    async def end_of(self, manifest: Manifest, timeout_ms: int) -> TransactionEnd:
        """Return how the transaction ended."""
        raise NotImplementedError

    async def records_of(
        self, manifest: Manifest, partitions: Collection[PartitionManifest], timeout_ms: int
    ) -> list[StoredRecord]:
        """Return the records of the transaction in those partitions."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release the connections."""
