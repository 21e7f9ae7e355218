"""The product's own producer behind the face of the foreign clients, with two-phase commit besides."""

from __future__ import annotations

from typing import Any, Final

from dualwrite.participant import ParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import TopicPartition

_QUICK: Final = {"max_block_ms": 60_000, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5, "linger_ms": 0}


class OwnProducer:
    """`settings` are the producer's, besides short back-offs."""

    def __init__(self, servers: str, transactional_id: str, **settings: Any) -> None:
        self._producer = ParticipantProducer(
            bootstrap_servers=servers, transactional_id=transactional_id, **{**_QUICK, **settings}
        )

    @classmethod
    def with_two_phase_commit(cls, servers: str, transactional_id: str) -> OwnProducer:
        """Under any guarantee of the broker."""
        return cls(servers, transactional_id, transaction_two_phase_commit_enable=True, accept_bounded_guarantee=True)

    def init(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._producer.send(topic, value, partition=partition)

    def send_offsets(self, group: str, topic: str, offset: int) -> None:
        self._producer.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, group)

    def flush(self) -> None:
        self._producer.flush()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def prepare(self) -> str:
        return str(self._producer.prepare_transaction())

    def complete(self, prepared: str) -> None:
        self._producer.complete_transaction(PreparedTxnState(prepared))

    def recover(self, prepared: str) -> None:
        self._producer.init_transactions(keep_prepared_txn=True)
        self._producer.complete_transaction(PreparedTxnState(prepared))

    def close(self) -> None:
        self._producer.close(timeout_s=0)
