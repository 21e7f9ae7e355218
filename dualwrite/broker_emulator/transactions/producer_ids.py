"""Producer ids: blocks of 1000 from the controller, handed out one by one by each coordinator (KIP-730)."""

from __future__ import annotations

from collections.abc import Callable

PRODUCER_ID_BLOCK_SIZE = 1000


class ProducerIdBlocks:
    """The controller's side: which ids were given away. One per cluster."""

    __slots__ = ("_allocated", "_next_producer_id")

    def __init__(self, first_producer_id: int = 0, allocated: Callable[[int], None] | None = None) -> None:
        self._next_producer_id = first_producer_id
        self._allocated = allocated

    def allocate(self) -> range:
        """The next block of ids; no two callers get the same.

        `allocated` hears before that of the end of the block; what it raises keeps the block from being used.
        """
        block = range(self._next_producer_id, self._next_producer_id + PRODUCER_ID_BLOCK_SIZE)
        if self._allocated is not None:
            self._allocated(block.stop)
        self._next_producer_id = block.stop
        return block


class ProducerIdManager:
    """A node's side: ids out of its own block, and a new block when that is used up."""

    __slots__ = ("_blocks", "_ids")

    def __init__(self, blocks: ProducerIdBlocks) -> None:
        self._blocks = blocks
        self._ids = iter(range(0))

    def next_producer_id(self) -> int:
        """A producer id that no one in the cluster was given before; ids of one node are not dense."""
        producer_id = next(self._ids, None)
        if producer_id is None:
            self._ids = iter(self._blocks.allocate())
            producer_id = next(self._ids)
        return producer_id
