"""What is known of the open transaction, and forgotten when it is over."""

from __future__ import annotations

from typing import Final

from dualwrite.client.transactions.offsets import TransactionOffsets
from dualwrite.client.transactions.registration import TxnPartitions
from dualwrite.prepared_state import PreparedTxnState

NOT_PREPARED: Final = PreparedTxnState()


class OpenTransaction:
    """The open transaction: one that was begun here, or one that was found prepared.

    Invariant: `clear()` leaves it as it was made, so that no fact of a transaction reaches the next one; the only
    exception is that late offset requests are remembered (`TransactionOffsets`).
    """

    __slots__ = (
        "commit_may_take_effect",
        "failed",
        "has_records",
        "leaves_id",
        "offsets",
        "partitions",
        "prepared_state",
        "reached_kafka",
    )

    def __init__(self) -> None:
        self.prepared_state = NOT_PREPARED
        """The producer id and epoch of a prepared transaction; else empty."""
        self.has_records = False
        """Whether a record or an offset was accepted from the application."""
        self.reached_kafka = False
        """Whether a request was made that may have told Kafka of this transaction."""
        self.failed = False
        """Whether a record or an offset was lost, so that it can only be aborted."""
        self.commit_may_take_effect = False
        """Whether EndTxn(commit) was sent and may have been carried out: until a response says how the transaction
        ended, no error may say that it failed."""
        self.leaves_id = False
        """Whether the transactional id is left to other producers once the transaction has ended."""
        self.partitions: Final = TxnPartitions()
        self.offsets: Final = TransactionOffsets()

    def clear(self) -> None:
        """Forget everything: the transaction is over."""
        self.prepared_state = NOT_PREPARED
        self.has_records = self.reached_kafka = self.failed = self.commit_may_take_effect = self.leaves_id = False
        self.offsets.clear()
        self.partitions.clear()
