"""The command: `python -m tests.differential --kafka 4.4.0 --sequences 100 --seed 1`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from tests.differential.guard import Guard
from tests.differential.logs import INTERNAL_PARTITIONS
from tests.differential.report import Report
from tests.differential.workers import Addresses, GivenUpError, played
from tests.support.servers.apache_kafka import KAFKA_VERSION, ApacheKafka

PROFILES: Final = {"3.9": Profile.KAFKA_3_9, "4.3": Profile.KAFKA_4_3, "4.4": Profile.KAFKA_4_4}
"""The profile of the emulator that is compared with a release, by its first two numbers."""
_NEVER_FULL: Final = 100 << 20
"""Size of the segments of internal topics: a sequence's records are not compacted before they are read."""
_PROPERTIES: Final = {
    "group.consumer.assignment.interval.ms": "0",
    "log.segment.delete.delay.ms": "0",
    "log.index.size.max.bytes": "4096",
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
_JVM_OPTIONS: Final = ("-Xms128m", "-Xmx1g", "-XX:+UseSerialGC")
"""Memory for thousands of sequences, whose groups and transactional ids stay."""


def main() -> int:
    """Compare; the exit status is 1 if the brokers differ, or could not be compared."""
    options = _parser().parse_args()
    config = BrokerConfig(
        profile=PROFILES[options.kafka.rpartition(".")[0]],
        transaction_two_phase_commit_enable=False,
        transaction_state_log_num_partitions=INTERNAL_PARTITIONS,
        transaction_state_log_segment_bytes=_NEVER_FULL,
        offsets_topic_num_partitions=INTERNAL_PARTITIONS,
        offsets_topic_segment_bytes=_NEVER_FULL,
        auto_create_topics_enable=False,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
    )
    real = ApacheKafka(version=options.kafka, properties=_PROPERTIES, jvm_options=_JVM_OPTIONS)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # as an exception: all is ended
    with Guard() as guard, Emulator(config=config) as emulator, real as kafka:
        guard.watch(kafka.pid, kafka.log_path.parent.parent)
        return play(options, (emulator.bootstrap_servers, kafka.bootstrap_servers), lambda: _revived(kafka, guard))


def _revived(kafka: ApacheKafka, guard: Guard) -> str | None:
    """Start Apache Kafka again if it has ended; return the message about it."""
    if kafka.is_alive:
        return None
    kafka.start()
    guard.watch(kafka.pid, kafka.log_path.parent.parent)
    return "Apache Kafka had ended, and was started again; what was played at the time was played again"


def play(options: argparse.Namespace, addresses: Addresses, revive: Callable[[], str | None]) -> int:
    """Play the sequences, print the findings, and return the exit status."""
    report = Report(options.seed, options.sequences, options.shrink)

    def mend() -> None:
        incident = revive()
        if incident is not None:
            report.add_incident(incident)

    try:
        for result in played(addresses, _seeds(options), options.workers, report.order, mend):
            report.add(result)
    except GivenUpError as error:
        report.add_incident(f"given up: {error}")
    finally:
        print(report.summary(), flush=True)
    return report.status


def _seeds(options: argparse.Namespace) -> Iterator[str]:
    ends_s = time.monotonic() + options.seconds if options.seconds else None
    for number in range(options.first, options.first + options.sequences):
        if ends_s is not None and time.monotonic() > ends_s:
            return
        yield f"{options.seed}:{number}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--kafka", default=KAFKA_VERSION, metavar="VERSION", help="default: %(default)s")
    parser.add_argument("--sequences", type=int, default=100, help="how many to play (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first one")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--shrink", type=int, default=20, help="most kinds to shrink (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="processes that play (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
