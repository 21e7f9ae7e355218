"""Transactions in a cluster where anything may happen at any moment, then a calm in which everything must come right.

Committed: all visible, once. Aborted: never. Then no transaction is open, and nothing holds consumers back.
"""

from __future__ import annotations

import contextlib
import os
import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from dualwrite.broker_emulator.handles import HeldReplication
from tests.emulator.nodes.patient_producer import PatientProducer
from tests.emulator.nodes.reading import read_committed
from tests.support.proof_only import examples

NODES, PARTITIONS, STATE_PARTITIONS = 3, 2, 2
TOPIC, STATE_TOPIC = "t", "__transaction_state"
PRODUCERS = ("a", "b", "c")
CALM_S = 20.0

nodes = st.integers(0, NODES - 1)
producers = st.integers(0, len(PRODUCERS) - 1)
partitions = st.integers(0, PARTITIONS - 1)
logs = st.sampled_from(
    [(TOPIC, index) for index in range(PARTITIONS)] + [(STATE_TOPIC, index) for index in range(STATE_PARTITIONS)]
)


class ClusterInTrouble(RuleBasedStateMachine):
    """Three nodes, three producers, and any order of events."""

    @initialize()
    def start(self) -> None:
        config = BrokerConfig(transaction_state_log_num_partitions=STATE_PARTITIONS, offsets_topic_num_partitions=1)
        self.emulator = Emulator(nodes=NODES, config=config, clock=VirtualClock(), topics={TOPIC: PARTITIONS})
        self.emulator.start()
        self.living = set(range(NODES))
        self.held: dict[tuple[str, int], HeldReplication] = {}
        self.producers = [PatientProducer(self.emulator, name, TOPIC) for name in PRODUCERS]

    # clients

    @rule(who=producers, partition=partitions)
    def send(self, who: int, partition: int) -> None:
        self.producers[who].send(partition)

    @rule(who=producers, partition=partitions, commit=st.booleans())
    def whole_transaction(self, who: int, partition: int, commit: bool) -> None:
        self.producers[who].send(partition)
        self.producers[who].end(commit=commit)

    @rule(who=producers, commit=st.booleans())
    def end(self, who: int, commit: bool) -> None:
        self.producers[who].end(commit=commit)

    @rule(who=producers)
    def initialise_again(self, who: int) -> None:
        producer = self.producers[who]
        if producer.ending is None:  # an asked-for decision has to be known before it is forgotten
            producer.initialise()

    # trouble

    @precondition(lambda self: len(self.living) > 1)
    @rule(node=nodes, cleanly=st.booleans())
    def lose_a_node(self, node: int, cleanly: bool) -> None:
        if node in self.living:
            (self.emulator.stop_node if cleanly else self.emulator.crash_node)(node)
            self.living.discard(node)

    @precondition(lambda self: len(self.living) > 1)
    @rule(log=logs)
    def lose_a_leader(self, log: tuple[str, int]) -> None:
        leader = self.emulator.log(*log).leader_id
        self.emulator.crash_node(leader)
        self.living.discard(leader)

    @rule(node=nodes)
    def start_a_node(self, node: int) -> None:
        if node not in self.living:
            self.emulator.start_node(node)
            self.living.add(node)

    @rule(log=logs, node=nodes)
    def move(self, log: tuple[str, int], node: int) -> None:
        if node in self.living:
            self.emulator.move_leader(*log, node)

    @rule(log=logs)
    def hold_replication(self, log: tuple[str, int]) -> None:
        self.hold(log)

    def hold(self, log: tuple[str, int]) -> None:
        if log not in self.held:
            self.held[log] = self.emulator.hold_replication(*log)

    @rule(who=producers, commit=st.booleans())
    def end_unreplicated(self, who: int, commit: bool) -> None:
        """A decision whose markers may be lost with their leaders."""
        for index in range(PARTITIONS):
            self.hold((TOPIC, index))
        self.producers[who].end(commit=commit)

    @rule(log=logs)
    def release(self, log: tuple[str, int]) -> None:
        if log in self.held:
            self.held.pop(log).release()

    @rule(log=logs, share=st.floats(0, 1))
    def release_in_part(self, log: tuple[str, int], share: float) -> None:
        if log in self.held:
            now = self.emulator.log(*log)
            offset = now.high_watermark + round(share * (now.log_end_offset - now.high_watermark))
            with contextlib.suppress(ValueError):  # in the middle of a batch, or it was truncated just now
                self.held[log].release(up_to=offset)

    # calm

    def teardown(self) -> None:
        if hasattr(self, "emulator"):
            try:
                self.calm_down()
                self.check()
            finally:
                self.emulator.stop()

    def calm_down(self) -> None:
        for held in self.held.values():
            held.release()
        for node in set(range(NODES)) - self.living:
            self.emulator.start_node(node)
        deadline_s = time.monotonic() + CALM_S
        waiting = list(self.producers)
        while waiting:
            waiting = [producer for producer in waiting if not producer.settle()]
            assert time.monotonic() < deadline_s, waiting
        while any(
            row.state not in ("Empty", "CompleteCommit", "CompleteAbort") for row in self.emulator.transactions()
        ):
            assert time.monotonic() < deadline_s, self.emulator.transactions()

    def check(self) -> None:
        committed = sorted(value for producer in self.producers for value in producer.committed)
        assert read_committed(self.emulator, TOPIC, PARTITIONS) == committed
        for index in range(PARTITIONS):
            log = self.emulator.log(TOPIC, index)
            assert log.last_stable_offset == log.high_watermark == log.log_end_offset
            assert all(producer.current_txn_start_offset == -1 for producer in log.producers)


ClusterInTrouble.TestCase.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", examples(40))),
    derandomize="HYPOTHESIS_EXAMPLES" not in os.environ,
    stateful_step_count=30,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_everything_comes_right_in_the_calm = ClusterInTrouble.TestCase
