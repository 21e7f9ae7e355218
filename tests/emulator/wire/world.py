"""The world of the tests at the wire: one emulator in one profile, one connection, and time that stands still.

The connection is the interop tests' own client, on kafka-python's codec: the emulator's codec checks nothing of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualwrite.broker_emulator import Emulator, HeldPoint, PausePoint, Profile
from dualwrite.broker_emulator.transactions.metadata import TransactionMetadata
from tests.interop.wire import Code, Described, Identity, Produced, Wire, code_of, wait_for
from tests.support.coordinator_memory import change_transaction

KIP_939, KAFKA_4_4, KAFKA_4_3, KAFKA_3_9 = Profile.KIP_939, Profile.KAFKA_4_4, Profile.KAFKA_4_3, Profile.KAFKA_3_9
ALL = frozenset({KIP_939, KAFKA_4_3, KAFKA_3_9})
"""The profiles in which each rule has a test; tests/emulator/test_profiles.py covers the others."""
TV2 = frozenset({KIP_939, KAFKA_4_3})
"""The profiles that have transaction version 2."""

COMMIT, ABORT = True, False
LAST = 32766
"""The last epoch that a transaction can be opened with."""


@dataclass(slots=True, eq=False)
class World:
    """One running emulator with topics "t" (1 partition) and "many" (3), and a client in the profile's newest style."""

    emulator: Emulator
    wire: Wire
    profile: Profile

    @property
    def has_tv2(self) -> bool:
        return self.profile in TV2

    # -- transactions in the newest style of the profile, or in that of old clients

    def write(
        self,
        transactional_id: str,
        identity: Identity,
        topic: str = "t",
        sequence: int = 0,
        *,
        partition: int = 0,
        old: bool = False,
    ) -> Produced:
        """Write one record in a transaction; an old client adds the partition first."""
        old = old or not self.has_tv2
        if old:
            (added,) = self.wire.add(transactional_id, identity, (topic, partition))
            if added != Code.NONE:
                return Produced(added, -1)
        version = 11 if old else 12
        return self.wire.produce(transactional_id, identity, topic, sequence, partition=partition, version=version)

    def open(self, transactional_id: str = "x", *, old: bool = False, timeout_ms: int = 60_000) -> Identity:
        """Initialise and write a record to "t"; gives the identity of the open transaction."""
        identity = self.wire.init_ok(transactional_id, timeout_ms=timeout_ms)
        assert self.write(transactional_id, identity, old=old).error == Code.NONE
        return identity

    def end(self, transactional_id: str, identity: Identity, *, commit: bool, old: bool = False) -> Identity:
        """End the transaction and wait for its markers; gives the identity of the next one."""
        version = 4 if old or not self.has_tv2 else 5
        answer = self.wire.end_settled(transactional_id, identity, commit=commit, version=version)
        assert answer.error == Code.NONE
        return answer.identity if version == 5 else identity

    def at_epoch(self, epoch: int, transactional_id: str = "x", *, timeout_ms: int = 60_000) -> Identity:
        """An initialised identity at this epoch, without the thousands of initialisations that it takes."""
        self.wire.init_ok(transactional_id, timeout_ms=timeout_ms)
        self.change(transactional_id, producer_epoch=epoch)
        return self.wire.describe(transactional_id).identity

    def change(self, transactional_id: str, **changes: Any) -> None:
        """Change the coordinator's memory of an id."""
        change_transaction(self.emulator, transactional_id, **changes)

    def metadata(self, transactional_id: str = "x") -> TransactionMetadata:
        """The coordinator's memory of an id."""

        def find() -> TransactionMetadata:
            return next(
                owned.ids[transactional_id]
                for node in self.emulator.cluster.nodes.values()
                for owned in node.transactions._partitions.values()
                if transactional_id in owned.ids
            )

        return self.emulator.call_in_loop(find)

    def time_out(self, transactional_id: str = "x") -> Described:
        """Let time pass until the server aborts the transaction."""
        self.emulator.advance_clock(70_000)
        return wait_for(
            lambda: self.wire.describe(transactional_id), lambda described: described.state == "CompleteAbort"
        )

    def hold(self, point: PausePoint, **context: Any) -> HeldPoint:
        """Hold a pause point for contexts with these values."""
        return self.emulator.hold(point, lambda met: met.items() >= context.items())

    def connect(self) -> Wire:
        """One more connection; the caller closes it."""
        return Wire(self.emulator.bootstrap_servers)

    # -- requests that only brokers and operators send

    def add_many(
        self, *transactions: tuple[str, Identity, bool, Sequence[tuple[str, int]]], version: int = 5
    ) -> dict[str, dict[tuple[str, int], Code | int]]:
        """AddPartitionsToTxn v4+ of (id, identity, verify only, partitions): codes by id and partition."""
        asked = [
            {
                **{"transactional_id": name, "verify_only": verify_only, **identity.fields},
                "topics": [{"name": topic, "partitions": [index]} for topic, index in partitions],
            }
            for name, identity, verify_only, partitions in transactions
        ]
        answer = self.wire.ask("AddPartitionsToTxn", version, transactions=asked)
        assert answer.error_code == 0
        return {
            result.transactional_id: {
                (topic.name, row.partition_index): code_of(row.partition_error_code)
                for topic in result.topic_results
                for row in topic.results_by_partition
            }
            for result in answer.results_by_transaction
        }

    def write_marker(self, identity: Identity, topic: str = "t", *, commit: bool = ABORT, **fields: Any) -> Code | int:
        """WriteTxnMarkers v2 with a transaction version, or v1 without."""
        return self.wire.write_marker(identity, topic, commit=commit, **fields)

    def finalized(self) -> tuple[int, int]:
        """The finalized level of transaction.version (0: not finalized), and the epoch of the finalized features."""
        answer = self.wire.api_versions()
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        return levels.get("transaction.version", 0), answer.finalized_features_epoch
