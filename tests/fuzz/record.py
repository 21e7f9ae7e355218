"""Record clients' frames, for `captures.txt`: `python -m tests.fuzz.record`.

Each works through a recording proxy on an emulator of its own. A client that cannot run here keeps its old capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

from dualwrite.broker_emulator import Emulator
from dualwrite.producer import Producer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.fuzz.captures import KEPT, keep, kept_captures
from tests.interop.aiokafka.client import Aiokafka
from tests.interop.case_program import CaseError, CaseProgram
from tests.interop.confluent_kafka.client import Confluent
from tests.interop.foreign_client import ForeignClient, Message
from tests.interop.franz_go import client as franz_go
from tests.interop.java.client import JavaTools, KafkaScripts
from tests.interop.kafka_python.client import KafkaPython
from tests.interop.kafkajs import client as kafkajs
from tests.support.kafka_proxy import Caught, KafkaProxy

_MOST_BYTES: Final = 60_000
_TOPIC, _GROUP, _ID = "t", "g", "p"


class _Recorder(KafkaProxy):
    """Keeps one frame of each kind and length: pollers repeat themselves."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.frames: list[bytes] = []
        self._seen: set[tuple[bytes, int]] = set()

    def take(self, frame: bytes) -> Caught | None:
        kind = (frame[:4], len(frame) // 8)
        if kind not in self._seen and sum(map(len, self.frames)) + len(frame) < _MOST_BYTES:
            self._seen.add(kind)
            self.frames.append(len(frame).to_bytes(4) + frame)
        return super().take(frame)


def _recorded(work: Callable[[str], None]) -> list[bytes]:
    with Emulator(topics={_TOPIC: 1, "x": 1}) as emulator, _Recorder(emulator.bootstrap_servers) as recorder:
        work(recorder.bootstrap_servers)
        return recorder.frames


def _foreign(client: ForeignClient) -> Callable[[str], None]:
    def work(servers: str) -> None:
        messages = [Message(b"v", b"k", (("h", b"1"),)), Message(None, b"k"), Message(b"v" * 200)]
        for codec in client.codecs[:3]:
            client.write(servers, _TOPIC, messages, codec=codec, idempotent=codec != "none")
        with closing(client.producer(servers, _ID)) as producer:
            producer.init()
            for commit in (True, False):
                producer.begin()
                producer.send(_TOPIC, b"1")
                producer.send_offsets(_GROUP, _TOPIC, 1)
                (producer.commit if commit else producer.abort)()
        client.consume(servers, _TOPIC, _GROUP, 3)
        client.committed_offset(servers, _GROUP, _TOPIC)

    return work


def _own(servers: str) -> None:
    settings: dict[str, Any] = {"transactional_id": _ID, "transaction_two_phase_commit_enable": True}
    with closing(Producer(bootstrap_servers=servers, **settings)) as producer:
        producer.init_transactions()
        for commit in (True, False):
            producer.begin_transaction()
            producer.send(_TOPIC, "1")
            producer.prepare_transaction()
            (producer.commit_transaction if commit else producer.abort_transaction)()


def _program(start: Callable[[], CaseProgram]) -> Callable[[str], None]:
    def work(servers: str) -> None:
        transactions = [{"values": list("abcde"), "commit": True}, {"values": ["b"], "commit": False}]
        inputs: dict[str, Any] = {
            "topic": _TOPIC,
            "transactionalId": _ID,
            "group": _GROUP,
            "transactions": transactions,
        }
        with closing(start()) as program:
            for case in ("transactions", "offsets_in_transactions", "fencing", "groups", "settings", "cluster"):
                try:
                    program.run(case, servers=servers, **inputs)
                except CaseError as error:
                    print(f"  {case}: {error}")

    return work


def _java(servers: str) -> None:
    with JavaTools() as tools:
        scripts = KafkaScripts(tools, servers)
        for codec in ("none", "zstd"):
            scripts.run("kafka-console-producer", "--topic", _TOPIC, "--compression-codec", codec, stdin="a\nb\nc\n")
        reading = ("--topic", _TOPIC, "--from-beginning", "--max-messages", "3", "--timeout-ms", "5000")
        for protocol in ("classic", "consumer"):
            options = ("--group", protocol, "--consumer-property", f"group.protocol={protocol}")
            scripts.run("kafka-console-consumer", *reading, *options)
        copying = ("--transactional-id", _ID, "--input-topic", _TOPIC, "--output-topic", "x", "--input-partition", "0")
        also = ("--consumer-group", _GROUP, "--transaction-size", "2", "--max-messages", "4", "--group-mode")
        scripts.run("transactional-message-copier", *copying, *also)
        for arguments in (("kafka-topics", "--describe"), ("kafka-consumer-groups", "--describe", "--all-groups")):
            scripts.run(*arguments)
        scripts.run("kafka-transactions", "list")


def _works() -> Iterator[tuple[str, Callable[[str], None]]]:
    yield "aiokafka", _foreign(Aiokafka())
    yield "confluent-kafka", _foreign(Confluent())
    yield "dualwrite", _own
    yield "franz-go", _program(franz_go.start_program)
    yield "java", _java
    yield "kafka-python", _foreign(KafkaPython())
    yield "kafkajs", _program(kafkajs.start_program)


def main() -> None:
    """Record every client that can run here."""
    captured = {capture.client: list(capture.frames) for capture in kept_captures()} if KEPT.exists() else {}
    for client, work in _works():
        try:
            captured[client] = _recorded(work)
        except ServerUnavailableError as error:
            print(f"{client}: left as it was: {error}")
        else:
            print(f"{client}: {len(captured[client])} frames")
    keep(captured)


if __name__ == "__main__":
    main()
