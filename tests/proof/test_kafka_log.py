"""The partition of the search has the responses of the emulator's partition, and shows its readers the same."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.log.partition_log import PartitionLog
from tests.emulator.log.writers import NOW_MS, batch, read_committed_rule
from tests.proof.kafka_log import Log, append_batch, append_marker, visible
from tests.proof.kafka_requests import Produce, Produced, WriteMarker, topic_partition

_PRODUCER_IDS = st.integers(1, 2)
_EPOCHS = st.integers(0, 3)
_VERSIONS = st.sampled_from((0, 2))

_BATCHES = st.builds(
    Produce,
    producer_id=_PRODUCER_IDS,
    producer_epoch=_EPOCHS,
    sequence=st.integers(0, 2),
    records=st.sampled_from(((b"a",), (b"b", b"c"))),
    transaction_version=_VERSIONS,
)
_MARKERS = st.builds(
    WriteMarker,
    partition=st.just(topic_partition(0)),
    producer_id=_PRODUCER_IDS,
    producer_epoch=_EPOCHS,
    committed=st.booleans(),
    coordinator_epoch=st.integers(0, 1),
    transaction_version=_VERSIONS,
)


@dataclass
class Both:
    """The emulator's log, and the log of the search."""

    real: PartitionLog = field(default_factory=lambda: PartitionLog("orders", 0))
    model: Log = ()

    def step(self, request: Produce | WriteMarker) -> None:
        """Carry a request out in both, and compare the responses."""
        if isinstance(request, Produce):
            after, response = append_batch(self.model, request)
            assert response == self._produce(self._asked(appends=after != self.model), request)
            self.model = after
            return
        expected_code = self.real.append_marker(
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            coordinator_epoch=request.coordinator_epoch,
            commit=request.committed,
            transaction_version=request.transaction_version,
            now_ms=NOW_MS,
        )
        self.model, code = append_marker(self.model, request)
        assert code is expected_code

    def _produce(self, log: PartitionLog, request: Produce) -> Produced:
        pair, version = request[:2], request.transaction_version
        guard = None
        if not log.has_open_transaction(*pair):
            guard = log.begin_verification(*pair, request.sequence, supports_epoch_bump=version >= 2)
        producer_id, epoch = pair
        records = batch(
            *request.records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=request.sequence,
            transactional=True,
        )
        result = log.append(records, now_ms=NOW_MS, guard=guard)
        return Produced(result.error.value, result.base_offset)

    def _asked(self, *, appends: bool) -> PartitionLog:
        """Return the log, or a copy of it for a batch that is not appended.

        A leader remembers its sequence, and refuses later ones (KAFKA-14920); in the search a coordinator refuses it.
        """
        return self.real if appends else copy.deepcopy(self.real)

    def shown(self) -> list[bytes]:
        """Return the records that a reader of the emulator's log gets up to the last stable offset."""
        read = self.real.read(0, max_bytes=1_000_000, read_committed=True, at_least_one=True)
        aborted = [(each.producer_id, each.first_offset) for each in read.aborted or ()]
        return [value for _, value in read_committed_rule(read.records, aborted, 0)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(_BATCHES, _MARKERS), max_size=14))
def test_the_partition_answers_as_the_emulators_does(requests: list[Produce | WriteMarker]) -> None:
    both = Both()
    for request in requests:
        both.step(request)
    for producer_id in (1, 2):  # so that everything is below the last stable offset
        both.step(WriteMarker(topic_partition(0), producer_id, 4, False, 1, 2))
    assert both.shown() == visible(both.model)
