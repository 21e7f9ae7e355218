"""What the sender needs of whoever owns the producer id: a transaction manager, or an idempotence manager."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from dualwrite.client import messages as m
from dualwrite.client.transactions.states import Event
from dualwrite.errors import KafkaError


class Outgoing(NamedTuple):
    """A request and the node that it is for (`messages.ANY_NODE`: whichever answers)."""

    request: m.Request
    node_id: int


class ProducerPort(Protocol):
    """Sans-I/O owner of (producer id, epoch). Called under the producer's lock; times in milliseconds."""

    producer_id: int
    producer_epoch: int

    @property
    def may_produce(self) -> bool:
        """Whether batches may be sent now."""

    @property
    def drops_unsent(self) -> bool:
        """Whether records that are not sent yet never will be."""

    @property
    def error(self) -> KafkaError | None:
        """Why it has failed, while it has."""

    @property
    def retry_at_ms(self) -> float | None:
        """When `poll()` wants to be called again though nothing happened."""

    @property
    def transaction_version(self) -> int:
        """Which protocol batches are written by (KIP-890); without transactions, the newest."""

    @property
    def wants_partitions(self) -> bool:
        """Whether partitions are to be added to the transaction before they may be written to."""

    def may_produce_to(self, topic: str, partition: int) -> bool:
        """Whether the partition is in the transaction. If it is not, `poll()` gives the request that adds it."""

    def check_send(self) -> None:
        """Raises unless a record may be sent now."""

    def accepted(self) -> None:
        """A record was accepted from the application."""

    def produced(self) -> None:
        """A batch is on its way."""

    def produce_unanswered(self) -> None:
        """A batch was sent and not answered; it is sent again."""

    def poll(self, now_ms: float, *, delivered: bool, in_flight: bool) -> Outgoing | None:
        """The next request, if there is one to send now."""

    def on_response(self, answer: m.Response, now_ms: float) -> None:
        """What the broker said to the request in flight."""

    def on_no_response(self, now_ms: float, *, sent: bool) -> None:
        """The connection was lost with the request in flight, or (not `sent`) there was none to send it on."""

    def on_unsupported(self, error: KafkaError) -> None:
        """The broker does not speak what the request in flight needs."""

    def consequence(self, event: Event) -> str:
        """What a batch's fate means for the producer, as the end of a sentence; may be empty."""

    def fail_abortable(self, error: KafkaError) -> None:
        """A batch is lost."""

    def fail_fatal(self, error: KafkaError) -> None:
        """The producer is finished."""
