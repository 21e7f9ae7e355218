"""The command: `python -m tests.differential --kafka 4.4.0 --sequences 100 --seed 1`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from tests.differential.logs import INTERNAL_PARTITIONS
from tests.differential.workers import Task, played
from tests.support.servers.apache_kafka import KAFKA_VERSION, ApacheKafka

PROFILES: Final = {"3.9": Profile.KAFKA_3_9, "4.3": Profile.KAFKA_4_3, "4.4": Profile.KAFKA_4_4}
"""The profile of the emulator that is compared with a release, by its first two numbers."""
_NEVER_FULL: Final = 100 << 20
"""Size of the segments of internal topics: what a sequence wrote is not compacted before it is read."""
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
    """Compare; the exit status is 1 if something differs."""
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
    with Emulator(config=config) as emulator, real as kafka:
        return _report(options, (emulator.bootstrap_servers, kafka.bootstrap_servers))


def _report(options: argparse.Namespace, addresses: tuple[str, str]) -> int:
    began_s = time.monotonic()
    number, kinds, unsteady = 0, Counter[str](), Counter[str]()
    for chunk in played(addresses, _tasks(options, began_s), options.workers):
        number += chunk.played
        for difference in chunk.found:
            if difference.about not in kinds:
                print(difference, flush=True)
            kinds[difference.about] += 0
        kinds.update(chunk.known)
        unsteady.update(chunk.unsteady)
    took_s = time.monotonic() - began_s
    print(f"seed {options.seed}: {number} sequences in {took_s:.0f} s, {len(kinds)} kinds of difference")
    for about, times in kinds.most_common():
        print(f"{times:6} {about}")
    for about, times in unsteady.most_common():
        print(f"{times:6} {about}, but not when played again")
    return 1 if kinds else 0


def _tasks(options: argparse.Namespace, began_s: float) -> Iterator[Task]:
    ends_s = began_s + options.seconds if options.seconds else None
    last = options.first + options.sequences
    for first in range(options.first, last, _IN_A_TASK):
        yield Task(options.seed, range(first, min(first + _IN_A_TASK, last)), ends_s)


_IN_A_TASK: Final = 20


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--kafka", default=KAFKA_VERSION, metavar="VERSION", help="default: %(default)s")
    parser.add_argument("--sequences", type=int, default=100, help="how many to play (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first one")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=3, help="processes that play (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
