"""A transactional producer of raw requests for clusters where everything happens: it never waits for long.

Without a prompt response, the outcome of a request is unknown. The same bytes are sent again later, until the cluster
confirms the outcome. So no step of a test waits for another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dualwrite.broker_emulator import Emulator
from tests.emulator.api.raw_client import RawClient, batch_of, produce_fields

PATIENCE_S = 0.05
AGAIN = {6, 7, 13, 14, 15, 16, 19, 51}
"""Retriable: nothing was decided, or not replicated yet, or another node is to be asked."""


class Identity(NamedTuple):
    """The producer id and epoch that batches and EndTxn carry."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Unconfirmed:
    """A batch that may be in the log or not."""

    partition: int
    sequence: int
    value: bytes


@dataclass
class PatientProducer:
    """One transactional id. `committed` is exactly what a read_committed consumer must see in the end."""

    emulator: Emulator
    transactional_id: str
    topic: str
    identity: Identity | None = None
    committed: list[bytes] = field(default_factory=list)
    confirmed: list[bytes] = field(default_factory=list)
    unconfirmed: list[Unconfirmed] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    ending: bool | None = None
    """Whether a decision that was asked for, but not confirmed, is to commit."""
    initialising: bool = True
    sent: int = 0

    # steps; each of them gives whether it is done

    def initialise(self) -> bool:
        """Abort an open transaction, and get a new identity."""
        self.initialising = True
        answer = self._ask(self._coordinator(), lambda client: client.init_producer_id(self.transactional_id))
        if answer is None or answer.error_code in AGAIN:
            return False
        assert answer.error_code == 0
        self._begin(answer)
        self.initialising = False
        return True

    def send(self, partition: int) -> bool:
        """Write one value, after all unconfirmed ones."""
        if not self._is_ready():
            return False
        value = f"{self.transactional_id}-{self.sent}".encode()
        self.sent += 1
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + 1
        self.unconfirmed.append(Unconfirmed(partition, sequence, value))
        return self.flush()

    def flush(self) -> bool:
        """Send unconfirmed batches again, in order."""
        while self.unconfirmed:
            first = self.unconfirmed[0]
            answer = self._produce(first)
            if answer is None or answer.error_code in AGAIN:
                return False
            assert answer.error_code == 0, answer
            self.confirmed.append(first.value)
            self.unconfirmed.pop(0)
        return True

    def end(self, *, commit: bool) -> bool:
        """End the transaction: abort it with unconfirmed batches, leave it alone when empty."""
        if not self._is_ready():
            return False
        if not self.confirmed and not self.unconfirmed:
            return True
        self.ending = self.flush() and commit
        return self._is_ready()

    def settle(self) -> bool:
        """Finish the transaction and commit everything."""
        return self._is_ready() and self.flush() and self.end(commit=True)

    def _is_ready(self) -> bool:
        """Whether a transaction can go on, once an ending under way has finished."""
        if self.initialising:
            return self.initialise()
        if self.ending is None:
            return True
        identity, commit = self.identity, self.ending
        answer = self._ask(
            self._coordinator(), lambda client: client.end_txn(self.transactional_id, identity, commit=commit)
        )
        if answer is None or answer.error_code in AGAIN:
            return False
        assert answer.error_code == 0, answer
        if commit:
            self.committed += self.confirmed
        self._begin(answer)
        return True

    def _begin(self, answer: Any) -> None:
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        self.ending = None
        self.confirmed, self.unconfirmed, self.sequences = [], [], {}

    # requests

    def _produce(self, batch: Unconfirmed) -> Any:
        records = batch_of(self.identity, batch.value, sequence=batch.sequence)
        fields = produce_fields(12, self.topic, records, self.transactional_id, batch.partition, timeout_ms=5)
        answer = self._ask(
            self.emulator.log(self.topic, batch.partition).leader_id,
            lambda client: client.call("produce", 12, **fields),
        )
        return None if answer is None else answer.responses[0].partition_responses[0]

    def _coordinator(self) -> int:
        return self.emulator.coordinator(transactional_id=self.transactional_id)

    def _ask(self, node_id: int, request: Callable[[RawClient], Any]) -> Any:
        """The response of a node; None where there is none soon, or the node is gone."""
        address = self.emulator.bootstrap_servers.split(",")[node_id]
        try:
            with RawClient(address) as client:
                client.be_patient_for(PATIENCE_S)
                return request(client)
        except (TimeoutError, ConnectionError):
            return None
