"""Kafka's own command-line tools and its Java client, all in one JVM that this starts and talks to."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.interop.case_program import LineProgram
from tests.support.servers.apache_kafka import KAFKA_VERSION, fetch_kafka
from tests.support.servers.cache import cached, find_program
from tests.support.servers.maven import dependency, fetched

VERSION: Final = "4.3.1"
"""The newest release whose `kafka-tools` can be had: 4.4.0 was published without it."""

SCRIPTS: Final[Mapping[str, str]] = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
}
"""The class behind each script of Kafka's `bin` directory; the last one is only in Kafka's own system tests."""

_RUNNER: Final = Path(__file__).with_name("ToolRunner.java")
_SHARE_CASES: Final = Path(__file__).with_name("ShareCases.java")
"""Runs with the clients of the newest release of the broker."""
_JVM_OPTIONS: Final = (
    "-Xms32m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)
_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """A tool's exit status and output."""

    exit_status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        """The last line, which our own programs write as JSON."""
        return json.loads(self.lines[-1])


def fetch_tools() -> Path:
    """The directory with the tools' jars. Raises ServerUnavailableError."""
    return fetched(
        f"kafka-tools-{VERSION}",
        dependency(f"org.apache.kafka:kafka-tools:{VERSION}"),
        dependency(f"org.apache.kafka:kafka_2.13:{VERSION}"),  # kafka-configs is still in the broker's jar
        dependency("org.slf4j:slf4j-simple:1.7.36"),
    )


def compiled(source: Path, jars: Path) -> Path:
    """The directory with the classes of a source of this folder. Raises ServerUnavailableError."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]

    def compile_in(work: Path) -> Path:
        javac = find_program("javac", "the cases of the Java client are compiled by a Java development kit")
        target = work / "classes"
        command = [javac, "-nowarn", "-cp", f"{jars}/*", "-d", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the cases of the Java client do not compile:\n{done.stderr}")
        return target

    return cached(f"interop-java-{jars.name}-{digest}", compile_in)


def share_cases() -> list[str]:
    """The command that runs `ShareCases.java`. Raises ServerUnavailableError."""
    return [*_command(_SHARE_CASES, fetch_kafka(KAFKA_VERSION)), "ShareCases"]


def _command(source: Path, jars: Path) -> list[str]:
    java = find_program("java", "Kafka's tools need a Java 17 runtime")
    return [java, *_JVM_OPTIONS, "-cp", f"{compiled(source, jars)}:{jars}/*"]


def fetch_programs() -> None:
    """Fetch and compile the programs of the cases."""
    compiled(_RUNNER, fetch_tools())
    compiled(_SHARE_CASES, fetch_kafka(KAFKA_VERSION))


def _java() -> list[str]:
    return _command(_RUNNER, fetch_tools())


class Running:
    """A tool that runs."""

    def __init__(self, jvm: JavaTools, number: int, ended: Future[Ended]) -> None:
        self._jvm = jvm
        self._number = number
        self._ended = ended

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._jvm.send({"id": self._number, "stop": True})

    def result(self, timeout_s: float = _TIMEOUT_S) -> Ended:
        return self._ended.result(timeout_s)


class JavaTools(LineProgram):
    """The JVM. Raises ServerUnavailableError where there is no Java, or the jars cannot be had."""

    def __init__(self) -> None:
        super().__init__([*_java(), "ToolRunner"], "the JVM with Kafka's tools")

    def start(self, main: str, *arguments: str, stdin: str = "") -> Running:
        """Run the class `main` with these arguments, beside other programs."""
        return Running(self, *self.ask({"main": main, "args": arguments, "stdin": stdin}))

    def run(self, main: str, *arguments: str, stdin: str = "", timeout_s: float = _TIMEOUT_S) -> Ended:
        """The same, to its end."""
        return self.start(main, *arguments, stdin=stdin).result(timeout_s)

    def run_alone(self, main: str, *arguments: str) -> Ended:
        """Run it in a JVM of its own, for tools that finish their work only at its end."""
        done = subprocess.run([*_java(), main, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S)
        return Ended(done.returncode, done.stdout, done.stderr)

    def result_of(self, answer: Mapping[str, Any]) -> Ended:
        return Ended(answer["exit"], answer["out"], answer["err"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KafkaScripts:
    """The scripts of Kafka's `bin` directory, for one broker."""

    def __init__(self, tools: JavaTools, bootstrap_servers: str) -> None:
        self.tools = tools
        self.bootstrap_servers = bootstrap_servers

    def start(self, script: str, *arguments: str, stdin: str = "") -> Running:
        """Run a script, beside others."""
        return self.tools.start(SCRIPTS[script], *self._with_broker(script, arguments), stdin=stdin)

    def alone(self, script: str, *arguments: str) -> Ended:
        """Run one to its end, in a JVM of its own."""
        return self.tools.run_alone(SCRIPTS[script], *self._with_broker(script, arguments))

    def run(self, script: str, *arguments: str, stdin: str = "") -> Ended:
        """Run a script to its end, and accept any exit status."""
        return self.start(script, *arguments, stdin=stdin).result()

    def ok(self, script: str, *arguments: str, stdin: str = "") -> str:
        """Run a script that has to succeed; return its output."""
        ended = self.run(script, *arguments, stdin=stdin)
        assert ended.exit_status == 0, ended
        return ended.out

    def _with_broker(self, script: str, arguments: tuple[str, ...]) -> list[str]:
        where = "--broker-list" if script == "transactional-message-copier" else "--bootstrap-server"
        commands = 1 if script == "kafka-cluster" else 0  # its command comes first
        return [*arguments[:commands], where, self.bootstrap_servers, *arguments[commands:]]
