"""The interface between the sender and the owner of the producer id: a transaction or an idempotence manager."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from dualwrite.client import messages as m
from dualwrite.client.late_log import LateLog
from dualwrite.client.transactions.states import Event
from dualwrite.errors import KafkaError


class Outgoing(NamedTuple):
    """A request and the id of the node to send it to (`messages.ANY_NODE`: any)."""

    request: m.Request
    node_id: int


class ProducerPort(Protocol):
    """The owner of the producer id and epoch, without I/O. Called under the producer's lock; times in milliseconds."""

    producer_id: int
    producer_epoch: int

    @property
    def late_log(self) -> LateLog:
        """The log for messages that are made under the lock."""

    @property
    def may_produce(self) -> bool:
        """Whether batches may be sent now."""

    @property
    def drops_unsent(self) -> bool:
        """Whether unsent records are never going to be sent."""

    @property
    def error(self) -> KafkaError | None:
        """Why the transaction or the producer failed, while it is failed."""

    @property
    def retry_at_ms(self) -> float | None:
        """When `poll()` must be called again even if nothing happens; None if it need not be."""

    @property
    def transaction_version(self) -> int:
        """The transaction.version by which batches are sent (KIP-890); without transactions, the newest."""

    @property
    def wants_partitions(self) -> bool:
        """Whether `poll()` returns a request that must be answered before partitions may be written to."""

    def may_produce_to(self, topic: str, partition: int, leader: int, losses: int) -> bool:
        """Return whether the transaction may write to the partition. If not, `poll()` returns the request that asks.

        `leader`: its node id; `losses`: how many connections to it have been lost.
        """

    def check_send(self) -> None:
        """Raise if no record may be sent now."""

    def accepted(self) -> None:
        """Note that a record was accepted from the application."""

    def produced(self) -> None:
        """Note that a batch is on its way."""

    def stored(self, topic: str, partition: int, base_offset: int, record_count: int) -> None:
        """Note where a batch is stored; -1: no broker knows."""

    def produce_unanswered(self) -> None:
        """Note that a batch got no response, and is sent again."""

    def poll(self, now_ms: float, *, delivered: bool) -> Outgoing | None:
        """Return the next request, if there is one to send now."""

    def on_response(self, answer: m.Response, now_ms: float) -> None:
        """Handle the response to the request in flight."""

    def on_no_response(self, now_ms: float, *, sent: bool) -> None:
        """Handle a connection lost with the request in flight, or (not `sent`) the lack of one to send it on."""

    def on_unsupported(self, error: KafkaError) -> None:
        """Fail for good: the broker does not offer the version that the request in flight needs."""

    def consequence(self, event: Event) -> str:
        """Return the consequence of a failed batch for the producer, as the end of a sentence; may be empty."""

    def fail_abortable(self, error: KafkaError) -> None:
        """Handle the loss of a batch."""

    def fail_fatal(self, error: KafkaError) -> None:
        """Fail the producer for good."""
