"""The command: `python -m tests.differential --kafka 4.4.0 --sequences 100 --seed 1`."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from typing import Final

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from tests.differential.comparison import Comparison, Difference
from tests.differential.logs import INTERNAL_PARTITIONS
from tests.differential.side import Side
from tests.support.servers.apache_kafka import KAFKA_VERSION, ApacheKafka

PROFILES: Final = {"3": Profile.KAFKA_3_9, "4": Profile.KAFKA_4_3}
"""The profile of the emulator that is compared with a release, by its first number."""
_PROPERTIES: Final = {
    "group.consumer.assignment.interval.ms": "0",
    "log.segment.delete.delay.ms": "0",
    "log.index.size.max.bytes": "4096",
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


def main() -> int:
    """Compare; the exit status is 1 if something differs."""
    options = _parser().parse_args()
    config = BrokerConfig(
        profile=PROFILES[options.kafka.partition(".")[0]],
        transaction_two_phase_commit_enable=False,
        transaction_state_log_num_partitions=INTERNAL_PARTITIONS,
        offsets_topic_num_partitions=INTERNAL_PARTITIONS,
        auto_create_topics_enable=False,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
    )
    with Emulator(config=config) as emulator, ApacheKafka(version=options.kafka, properties=_PROPERTIES) as kafka:
        with (
            closing(Side("the emulator", emulator.bootstrap_servers)) as emulated,
            closing(Side(f"Apache Kafka {options.kafka}", kafka.bootstrap_servers)) as real,
        ):
            return _run(Comparison(emulated, real), options)


def _run(comparison: Comparison, options: argparse.Namespace) -> int:
    found: dict[str, Difference] = {}
    began_s = time.monotonic()
    played = 0
    for number in range(options.first, options.first + options.sequences):
        if options.seconds and time.monotonic() - began_s > options.seconds:
            break
        played += 1
        difference = comparison.compare(f"{options.seed}:{number}")
        if difference is None:
            continue
        found[difference.about] = comparison.shrink(difference)
        comparison.known[difference.about] += 1
        print(found[difference.about], flush=True)
    took_s = time.monotonic() - began_s
    print(f"seed {options.seed}: {played} sequences in {took_s:.0f} s, {len(found)} kinds of difference")
    for about, number in comparison.known.most_common():
        print(f"{number:6} {about}")
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--kafka", default=KAFKA_VERSION, metavar="VERSION", help="default: %(default)s")
    parser.add_argument("--sequences", type=int, default=100, help="how many to play (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first one")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
