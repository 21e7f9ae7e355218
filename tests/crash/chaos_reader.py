"""A consumer that reads along while the chaos test rages, and notes its records."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from dualwrite.verify.history import Isolation, Poll, Record

_POLL_S: Final = 0.2
_MOST: Final = 500
_FATAL: Final = ("_AUTO_OFFSET_RESET", "_FATAL")
"""The broker no longer has the records that it gave. All other errors pass: brokers are killed here."""


class AlongReader:
    """One session with `read_committed`, from the beginning, in a thread."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "along",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._partitions = partitions
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="along", daemon=True)
        self.polls: list[Poll] = []
        self.problems: list[str] = []

    def start(self) -> None:
        self._consumer.assign(
            [TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in range(self._partitions)]
        )
        for number in range(self._partitions):
            self._note(number, ())
        self._thread.start()

    def stop(self) -> None:
        """Stop; its records do not change after this."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
            self._consumer.close()

    def _read_on(self) -> None:
        while not self._stopped.is_set():
            found: dict[int, list[Record]] = defaultdict(list)
            for message in self._consumer.consume(_MOST, _POLL_S):
                if (error := message.error()) is None:
                    found[message.partition() or 0].append(_record_of(message))
                elif error.name() in _FATAL:
                    self.problems.append(f"a reader could not go on: {error}")
            for number, records in found.items():
                self._note(number, tuple(records))

    def _note(self, number: int, records: tuple[Record, ...]) -> None:
        position = records[-1].offset + 1 if records else 0
        partition = f"{self._topic}-{number}"
        self.polls.append(Poll(time.time(), "along", Isolation.READ_COMMITTED, partition, records, position))


def _record_of(message: Message) -> Record:
    offset, key, value = message.offset(), message.key(), message.value()
    assert offset is not None
    return Record(offset, _text(key), _text(value))


def _text(found: str | bytes | None) -> str:
    return found.decode() if isinstance(found, bytes) else found or ""
