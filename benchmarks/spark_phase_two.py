"""`python -m benchmarks.spark_phase_two`: how long the Spark sink takes to commit the transactions of a batch.

Transactions of one record each are prepared, as tasks do it, and then completed by another process's Kafka port, as the
driver does after the decision. The broker is a process of its own; the store is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from benchmarks import broker_peers
from benchmarks.producer import new_topic, rounds_of
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.options import parse
from spark_sink.sink_kafka import ProducerSinkKafka
from spark_sink.store.attempt_states import Claim, Ending, Prepared, Verdict

COUNTS = (1, 8, 32, 128, 512)
MAX_MS_OF_512 = 250.0


class Rows:
    """The rows of the claims, which do not change."""

    def __init__(self, rows: Mapping[str, Prepared]) -> None:
        self._rows = rows

    def still_wanted(self, attempt_ids: Collection[str]) -> Mapping[str, Prepared]:
        return {each: self._rows[each] for each in attempt_ids}

    def named(self, states: Collection[PreparedTxnState], cluster_id: str) -> frozenset[PreparedTxnState]:
        return frozenset(states) & {each.state for each in self._rows.values()}

    def replace(self, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        raise AssertionError(f"{attempt_id} was aborted")


def new_side(bootstrap_servers: str, topic: str) -> ProducerSinkKafka:
    options = {
        "sinkId": "phase.two",
        "topic": topic,
        "commitStore.urlEnv": "NONE",
        "txn.mode": "resume",
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.linger.ms": "0",
    }
    return ProducerSinkKafka(parse(options))


def prepare(side: ProducerSinkKafka, count: int) -> dict[str, Prepared]:
    """Prepare this number of transactions; return the rows by transactional id."""
    rows = {}
    for number in range(count):
        transactional_id = f"phase.two-{number}-0"
        transaction = side.open(transactional_id, lambda: True)
        transaction.write(pa.record_batch({"value": ["x" * 100]}))
        rows[transactional_id] = transaction.prepare()
        transaction.close()
    return rows


def complete(side: ProducerSinkKafka, rows: Mapping[str, Prepared]) -> tuple[float, float]:
    """Commit the prepared transactions; return the wall time and this process's CPU time, in milliseconds."""
    claims = [Claim(each, "query", 0, each, Verdict.COMMIT, row.state) for each, row in rows.items()]
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    ended = side.end(claims, Rows(rows))
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    assert all(end.ending is Ending.COMMITTED for end in ended.values()), "not committed"
    return wall_s * 1000, cpu_s * 1000


def measure(bootstrap_servers: str, counts: Sequence[int], rounds: int) -> dict[int, list[tuple[float, float]]]:
    """Measure each size `rounds` times, after one that warms up."""
    measured: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    with new_topic(bootstrap_servers) as topic:
        task, driver = new_side(bootstrap_servers, topic), new_side(bootstrap_servers, topic)
        complete(driver, prepare(task, 1))
        for _ in range(rounds):
            for count in counts:
                measured[count].append(complete(driver, prepare(task, count)))
        task.close()
        driver.close()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_phase_two", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=rounds_of, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--kafka", action="store_true", help="a real Apache Kafka, not the emulator")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, metavar="N", help="transactions of a batch")
    chosen = parser.parse_args()
    peer = broker_peers.APACHE_KAFKA if chosen.kafka else broker_peers.EMULATOR
    with broker_peers.PEERS[peer]() as broker:
        measured = measure(broker.bootstrap_servers, chosen.counts, chosen.rounds)
    print(f"{peer}: transactions, milliseconds (median, min, max), CPU of the driver")
    for count, times in measured.items():
        walls = [wall for wall, _ in times]
        cpu = statistics.median(cpu for _, cpu in times)
        print(f"{count:6} {statistics.median(walls):8.1f} {min(walls):8.1f} {max(walls):8.1f} {cpu:8.1f}")
    if 512 in measured:
        median = statistics.median(wall for wall, _ in measured[512])
        print(f"{'reached' if median <= MAX_MS_OF_512 else 'MISSED'}: 512 in at most {MAX_MS_OF_512:g} ms")


if __name__ == "__main__":
    main()
