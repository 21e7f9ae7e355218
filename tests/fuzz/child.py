"""The process that is attacked: `python -m tests.fuzz.child DIRECTORY`. It prints its two addresses.

Its clock starts at the time of a virtual one, so that producer ids are the same in each new directory.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from dualwrite.broker_emulator.clock import SystemClock, Timer
from dualwrite.broker_emulator.process.tuning import settle_memory

USER: Final = "fuzz"
PASSWORD: Final = "fuzz-secret"
LOGIN_LISTENER: Final = "LOGIN"

PROPERTIES: Final = {
    "listeners": f"PLAINTEXT://127.0.0.1:0,{LOGIN_LISTENER}://127.0.0.1:0",
    "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LOGIN_LISTENER}:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    f"listener.name.{LOGIN_LISTENER.lower()}.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
    ),
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.cleaner.backoff.ms": "500",
    "connection.failed.authentication.delay.ms": "1",
}
TOPICS: Final = {"t": 2, "x": 1}


@dataclass
class _ShiftedClock:
    """The machine's clock, set back to where a virtual one starts."""

    system: SystemClock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self._behind_ms = self.system.now_ms() - VirtualClock().now_ms()

    def now_ms(self) -> int:
        return self.system.now_ms() - self._behind_ms

    def call_every(self, interval_ms: int, callback: Callable[[], None]) -> Timer:
        return self.system.call_every(interval_ms, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return self.system.call_later(delay_ms, callback)


def _show_stacks() -> None:
    """Log the stacks of the other threads: the prober waits for one of them."""
    own = threading.get_ident()
    for thread, frame in sys._current_frames().items():
        if thread != own:
            print("stack:", *traceback.format_stack(frame)[-8:], sep="\n", file=sys.stderr, flush=True)


def main(directory: str) -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    config = BrokerConfig.from_properties(PROPERTIES)
    with Emulator(config=config, clock=_ShiftedClock(), topics=TOPICS, data_dir=directory) as emulator:
        settle_memory()  # as the command does
        print(emulator.bootstrap_servers, emulator.bootstrap(LOGIN_LISTENER), flush=True)
        while signal.sigwait({signal.SIGTERM, signal.SIGUSR1}) is signal.SIGUSR1:
            _show_stacks()


if __name__ == "__main__":
    main(sys.argv[1])
