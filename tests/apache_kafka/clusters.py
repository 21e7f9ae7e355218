"""Brokers by tier (`dualwrite.guarantee`), and the settings of a producer that uses them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from tests.apache_kafka import worker
from tests.interop.wire import Described, Wire, wait_for
from tests.support.forked_processes import processes
from tests.support.real_kafkas import OLDER, RELEASED, TWO_PHASE_COMMIT
from tests.support.servers.apache_kafka import ApacheKafka

KILLED_WITHIN_S: Final = 60

KINDS: Final = {Tier.STORED_PAIR: TWO_PHASE_COMMIT, Tier.BOUNDED: RELEASED, Tier.BOUNDED_V1: OLDER}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running Apache Kafka of one tier."""

    kafka: ApacheKafka
    tier: Tier

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka.bootstrap_servers

    @property
    def is_bounded(self) -> bool:
        """Whether a prepared transaction has a timeout."""
        return self.tier is not Tier.STORED_PAIR

    def settings(self, transactional_id: str, **more: Any) -> dict[str, Any]:
        """Settings of a producer with two-phase commit, as far as this cluster has it; names have underscores."""
        settings = self.settings_of_writer(transactional_id) | {"transaction_two_phase_commit_enable": True}
        return settings | ({"accept_bounded_guarantee": True} if self.is_bounded else {}) | more

    def settings_of_writer(self, transactional_id: str) -> dict[str, Any]:
        """Settings of a writer, which asks for two-phase commit itself."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "transactional_id": transactional_id,
            "max_block_ms": 60_000,
        }

    def describe(self, transactional_id: str) -> Described:
        """Describe the transactional id over a codec that is not ours."""
        for address in self.bootstrap_servers.split(","):
            with Wire(address) as wire:
                described = wire.describe(transactional_id)
            if described.error == 0:
                break
        return described

    def wait_until_settled(self, transactional_id: str) -> Described:
        """Wait until no transaction is open. Completing a leftover takes the id over then, which leaves Empty."""
        settled = ("CompleteCommit", "CompleteAbort", "Empty")
        return wait_for(lambda: self.describe(transactional_id), lambda described: described.state in settled)

    def wait_for_state(self, transactional_id: str, state: str) -> Described:
        """Wait for a state: markers are written a moment after the decision."""
        return wait_for(lambda: self.describe(transactional_id), lambda described: described.state == state)


def killed_after_prepare(face: str, settings: dict[str, Any], topic: str, value: bytes) -> PreparedTxnState:
    """Return the prepared state of a process that is gone."""
    told = killed(worker.prepare, face, settings, topic, value)
    assert told is not None
    return PreparedTxnState(told)


def killed(work: Callable[..., None], *arguments: Any) -> str | None:
    """Have a process do `work` until it kills itself; return its message."""
    context = processes()
    listen, tell = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(tell, *arguments), daemon=True)
    process.start()
    tell.close()
    process.join(KILLED_WITHIN_S)
    told: str | None
    try:
        told = listen.recv() if listen.poll() else None
    except EOFError:
        told = None
    assert process.exitcode == -signal.SIGKILL, f"{work.__name__} went on to its end: {told}"
    return told
