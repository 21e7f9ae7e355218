"""The simulation of brokers that complete transactions without all markers (KAFKA-20734), and of an operator.

The operator does what the error of a dual write says. Where it names both ends, because the row does not tell, the
operator compares the records with the database and the topic.
"""

from __future__ import annotations

from typing import Final

from dualwrite.admin import AsyncTransactionAdmin
from dualwrite.broker_emulator.log.record_batch import iter_records, split_batches
from dualwrite.errors import DualWriteError, TransactionHangsError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import TopicPartition
from tests.proof.simulation.brokers import PARTITIONS, TOPIC
from tests.proof.simulation.loop import Process
from tests.proof.simulation.run import Result, Writers, simulate

_LOST_MARKERS: Final = 12
"""How likely a marker is lost, beside the other faults."""
_SWEEP_S: Final = 60.0


class Hanging(Writers):
    """Processes that write while markers are lost."""

    expected_errors = ("KAFKA-20734",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._settings.consumes = False  # in `__consumer_offsets` nothing is asked
        self.faults.add_lost_markers(_LOST_MARKERS)
        self._swept = False

    async def operate(self, error: BaseException) -> None:
        """End the transactions that an error names, as it says."""
        if not isinstance(error, TransactionHangsError):
            return
        hanging = PreparedTxnState(error.prepared_state)
        starts = error.start_offsets or (-1,) * len(error.partitions)
        for (topic, partition), start in zip(error.partitions, starts, strict=True):
            commits = start < 0 or "so commit it" in str(error)
            if "no longer shows" in str(error):
                commits = self._was_decided(partition, hanging.producer_id, start)
            await self._end(TopicPartition(topic, partition), hanging, start, commits=commits)

    async def _end(self, where: TopicPartition, hanging: PreparedTxnState, start: int, *, commits: bool) -> None:
        self.history.note(f"the operator {'commits' if commits else 'aborts'} {hanging} in {where}, from {start}")
        try:
            async with self._admin() as admin:
                if commits:
                    await admin.commit_transaction(where, hanging)
                else:
                    await admin.abort_transaction(where, start_offset=start)
        except DualWriteError as error:
            self.history.note(f"the operator got {type(error).__name__}: {error}")

    def _admin(self) -> AsyncTransactionAdmin:
        here = self.loop.current.name  # whose connections are no other process's
        return AsyncTransactionAdmin(bootstrap_servers=self.brokers.bootstrap, client_id=here, request_timeout_ms=2_000)

    def _was_decided(self, partition: int, producer_id: int, start: int) -> bool:
        """Return whether the database has the changes of the open records, and the topic has them nowhere else.

        A copy behind is hidden from read_committed, as everything is from the open transaction on.
        """
        log = self.readers[partition].partition.log
        found = log.read(start, max_bytes=1 << 30, read_committed=False, at_least_one=True)
        values, elsewhere = set[str](), {write for _, write in self.readers[partition].at_rest()}
        for header, batch in split_batches(found.records):
            if not header.is_control:
                of = values if header.producer_id == producer_id else elsewhere
                of.update((record.value or b"").decode() for record in iter_records(batch))
        return not values & elsewhere and all(map(self.history.is_decided, values))

    async def _sweep(self) -> None:
        """End the transactions that hang where no block was refused."""
        for partition in range(PARTITIONS):
            where = TopicPartition(TOPIC, partition)
            async with self._admin() as admin:
                found = await admin.describe_producers([where])
            for each in found[where]:
                if (start := each.current_transaction_start_offset) is not None:
                    hanging = PreparedTxnState.of(producer_id=each.producer_id, producer_epoch=each.producer_epoch)
                    commits = self._was_decided(partition, each.producer_id, start)
                    await self._end(where, hanging, start, commits=commits)
        self._swept = True

    def _check_brokers(self) -> None:
        self.loop.begin(Process("operator"), self._sweep())
        self.loop.run_until(lambda: self._swept, self.loop.now_s + _SWEEP_S)
        super()._check_brokers()


def simulate_hanging(seed: int) -> Result:
    """Run one seed."""
    return simulate(seed, Hanging)
