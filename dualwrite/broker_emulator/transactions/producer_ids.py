"""Producer ids: allocated in blocks of 1000 by the controller, and one by one by each coordinator (KIP-730)."""

from __future__ import annotations

from collections.abc import Callable

PRODUCER_ID_BLOCK_SIZE = 1000


class ProducerIdBlocks:
    """The controller's side: the allocated ids. One per cluster."""

    __slots__ = ("_allocated", "_next_producer_id", "first_epoch")

    def __init__(self, first_producer_id: int = 0, allocated: Callable[[int], None] | None = None) -> None:
        self._next_producer_id = first_producer_id
        self._allocated = allocated
        self.first_epoch = 0  # of producers without a transactional id; tests change it

    def allocate(self) -> range:
        """Allocate the next block of ids, once only.

        First calls `allocated` with the end of the block; if that raises, the block is not allocated.
        """
        block = range(self._next_producer_id, self._next_producer_id + PRODUCER_ID_BLOCK_SIZE)
        if self._allocated is not None:
            self._allocated(block.stop)
        self._next_producer_id = block.stop
        return block


class ProducerIdManager:
    """A node's side: takes ids from its own block, and a new block when that is used up."""

    __slots__ = ("_blocks", "_ids")

    def __init__(self, blocks: ProducerIdBlocks) -> None:
        self._blocks = blocks
        self._ids = iter(range(0))

    @property
    def first_epoch(self) -> int:
        """The epoch at which producers without a transactional id start."""
        return self._blocks.first_epoch

    def next_producer_id(self) -> int:
        """Return a producer id that was never used in the cluster before; ids of one node are not contiguous."""
        producer_id = next(self._ids, None)
        if producer_id is None:
            self._ids = iter(self._blocks.allocate())
            producer_id = next(self._ids)
        return producer_id
