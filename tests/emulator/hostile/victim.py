"""An emulator under attack, and its invariants."""

from __future__ import annotations

import logging
import socket
import struct
from types import TracebackType
from typing import Self

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from tests.emulator.api.raw_client import RawClient

_TIMEOUT_S = 60.0


class Victim(logging.Handler):
    """Collects unexpected log records of the broker."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        super().__init__(logging.WARNING)
        self.bugs: list[str] = []
        self.reasons: list[str] = []
        self.emulator = Emulator(
            config=config or BrokerConfig(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=3),
            clock=VirtualClock(),
            topics={"t": 2, "x": 1},
        )

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        (self.bugs if record.exc_info or record.levelno > logging.WARNING else self.reasons).append(text)

    def __enter__(self) -> Self:
        self.emulator.start()
        self.bystander = RawClient(self.emulator.bootstrap_servers, "bystander")
        self.bystander.init_producer_id("x")
        for name in ("asyncio", "dualwrite"):
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in ("asyncio", "dualwrite"):
            logging.getLogger(name).removeHandler(self)
        self.bystander.__exit__(exc_type, exc, traceback)
        self.emulator.stop()

    def attack(self, data: bytes) -> list[int]:
        """Send `data` on a connection of its own; return the correlation ids of the responses until the broker closes
        it.

        The sending half is shut down afterwards, so that no read waits for a response that never comes.
        """
        host, _, port = self.emulator.bootstrap_servers.rpartition(":")
        received = b""
        with socket.create_connection((host, int(port)), _TIMEOUT_S) as attacker:
            try:
                attacker.sendall(data)
                attacker.shutdown(socket.SHUT_WR)
                while chunk := attacker.recv(1 << 16):
                    received += chunk
            except ConnectionError:
                pass
        return list(_correlation_ids(received))

    def check(self) -> None:
        """Check that another client is served, and that no exception was logged."""
        self.bystander.call("find_coordinator", 3, key="x", key_type=1)
        assert not self.bugs, self.bugs[0]


def _correlation_ids(received: bytes) -> list[int]:
    ids, place = [], 0
    while place + 8 <= len(received):
        size, correlation_id = struct.unpack_from(">ii", received, place)
        ids.append(correlation_id)
        place += 4 + size
    return ids
