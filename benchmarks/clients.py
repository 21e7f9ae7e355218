"""The same transactions with each client library: `python -m benchmarks.clients CLIENT ...` prints one JSON object.

Runs in a process of its own, so that the interpreter lock and the CPU time belong to one library only. Every library
runs with its defaults; the asyncio ones run on uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass

_WARM_UP_S = 0.3
_WARM_UP_TRANSACTIONS = 3
_MOST_BYTES = 512 << 20
"""The most bytes of values that one process sends, because the emulator keeps a gibibyte until the topic is deleted."""
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Job:
    """Transactions of `records` records with values of `record_bytes` bytes, by `producers` concurrent producers."""

    bootstrap_servers: str
    topic: str
    producers: int = 1
    records: int = 1
    record_bytes: int = 100
    duration_s: float = 1.0

    @property
    def values(self) -> list[bytes]:
        """The values of one transaction, all different: copying one that is in the CPU cache would cost nothing."""
        chance = random.Random(0)
        return [chance.randbytes(self.record_bytes) for _ in range(self.records)]

    @property
    def most_transactions(self) -> int:
        """How many transactions each producer may make, warm-up included, even if there is time for more."""
        return _MOST_BYTES // (self.producers * self.records * self.record_bytes)

    @property
    def most_to_warm_up(self) -> int:
        return max(_WARM_UP_TRANSACTIONS, self.most_transactions // 4)


@dataclass(frozen=True)
class Done:
    """The measurements of one process."""

    transactions_per_s: float
    records_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_s_per_million: float
    """CPU seconds of this process, all its threads, per million records."""


Transact = Callable[[], object]
TransactAsync = Callable[[], Awaitable[object]]
SyncClient = Callable[[Job, str], AbstractContextManager[Transact]]
AsyncClient = Callable[[Job, str], AbstractAsyncContextManager[TransactAsync]]


# ---- ours -------------------------------------------------------------------------------------------------------


@contextmanager
def dualwrite_send(job: Job, transactional_id: str) -> Iterator[Transact]:
    from dualwrite import Producer

    values, topic = job.values, job.topic
    with Producer(bootstrap_servers=job.bootstrap_servers, transactional_id=transactional_id) as producer:
        producer.init_transactions()

        def transact() -> None:
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value)
            producer.commit_transaction()

        yield transact


@contextmanager
def dualwrite_prepared(job: Job, transactional_id: str) -> Iterator[Transact]:
    """Prepare each transaction, then complete it by its prepared state, as a dual write does."""
    from dualwrite import Producer

    values, topic = job.values, job.topic
    with Producer(
        bootstrap_servers=job.bootstrap_servers,
        transactional_id=transactional_id,
        transaction_two_phase_commit_enable=True,
        accept_bounded_guarantee=True,
    ) as producer:
        producer.init_transactions()

        def transact() -> None:
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value)
            producer.complete_transaction(producer.prepare_transaction())

        yield transact


def _iterable(job: Job) -> object:
    return job.values


def _arrow(job: Job) -> object:
    import pyarrow

    return pyarrow.RecordBatch.from_pydict({"value": pyarrow.array(job.values, pyarrow.binary())})


def dualwrite_batch(records_of: Callable[[Job], object]) -> SyncClient:
    @contextmanager
    def opened(job: Job, transactional_id: str) -> Iterator[Transact]:
        from dualwrite import Producer

        records, topic = records_of(job), job.topic
        with Producer(bootstrap_servers=job.bootstrap_servers, transactional_id=transactional_id) as producer:
            producer.init_transactions()

            def transact() -> None:
                producer.begin_transaction()
                producer.send_batch(topic, records)
                producer.commit_transaction()

            yield transact

    return opened


@asynccontextmanager
async def dualwrite_async_send(job: Job, transactional_id: str) -> AsyncIterator[TransactAsync]:
    from dualwrite import AsyncProducer

    values, topic = job.values, job.topic
    async with AsyncProducer(bootstrap_servers=job.bootstrap_servers, transactional_id=transactional_id) as producer:
        await producer.init_transactions()

        async def transact() -> None:
            await producer.begin_transaction()
            for value in values:
                await producer.send(topic, value)
            await producer.commit_transaction()

        yield transact


def dualwrite_async_batch(records_of: Callable[[Job], object]) -> AsyncClient:
    @asynccontextmanager
    async def opened(job: Job, transactional_id: str) -> AsyncIterator[TransactAsync]:
        from dualwrite import AsyncProducer

        records, topic, servers = records_of(job), job.topic, job.bootstrap_servers
        async with AsyncProducer(bootstrap_servers=servers, transactional_id=transactional_id) as producer:
            await producer.init_transactions()

            async def transact() -> None:
                await producer.begin_transaction()
                await producer.send_batch(topic, records)
                await producer.commit_transaction()

            yield transact

    return opened


# ---- others -----------------------------------------------------------------------------------------------------


@contextmanager
def confluent_kafka(job: Job, transactional_id: str) -> Iterator[Transact]:
    import confluent_kafka as library

    values, topic = job.values, job.topic
    producer = library.Producer({"bootstrap.servers": job.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(_TIMEOUT_S)
    produce, poll = producer.produce, producer.poll

    def transact() -> None:
        producer.begin_transaction()
        for value in values:
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    poll(0.01)
        producer.commit_transaction()

    yield transact
    producer.flush(_TIMEOUT_S)


@contextmanager
def confluent_kafka_batch(job: Job, transactional_id: str) -> Iterator[Transact]:
    import confluent_kafka as library

    messages, topic = [{"value": value} for value in job.values], job.topic
    producer = library.Producer({"bootstrap.servers": job.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(_TIMEOUT_S)

    def transact() -> None:
        producer.begin_transaction()
        if producer.produce_batch(topic, messages) != len(messages):
            raise RuntimeError("the client's queue is full")
        producer.commit_transaction()

    yield transact
    producer.flush(_TIMEOUT_S)


@contextmanager
def kafka_python(job: Job, transactional_id: str) -> Iterator[Transact]:
    import kafka

    values, topic = job.values, job.topic
    producer = kafka.KafkaProducer(bootstrap_servers=job.bootstrap_servers, transactional_id=transactional_id)
    producer.init_transactions()

    def transact() -> None:
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value)
        producer.commit_transaction()

    yield transact
    producer.close()


@asynccontextmanager
async def aiokafka(job: Job, transactional_id: str) -> AsyncIterator[TransactAsync]:
    import aiokafka as library

    values, topic = job.values, job.topic
    producer = library.AIOKafkaProducer(bootstrap_servers=job.bootstrap_servers, transactional_id=transactional_id)
    await producer.start()

    async def transact() -> None:
        await producer.begin_transaction()
        for value in values:
            await producer.send(topic, value)
        await producer.commit_transaction()

    yield transact
    await producer.stop()


SYNC_CLIENTS: dict[str, SyncClient] = {
    "Producer": dualwrite_send,
    "Producer, prepared": dualwrite_prepared,
    "Producer, send_batch": dualwrite_batch(_iterable),
    "Producer, send_batch of Arrow": dualwrite_batch(_arrow),
    "confluent-kafka": confluent_kafka,
    "confluent-kafka, produce_batch": confluent_kafka_batch,
    "kafka-python": kafka_python,
}
ASYNC_CLIENTS: dict[str, AsyncClient] = {
    "AsyncProducer": dualwrite_async_send,
    "AsyncProducer, send_batch": dualwrite_async_batch(_iterable),
    "AsyncProducer, send_batch of Arrow": dualwrite_async_batch(_arrow),
    "aiokafka": aiokafka,
}


# ---- measuring --------------------------------------------------------------------------------------------------


class Stopwatch:
    """The time of each transaction, and the start and end of the measurement."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.latencies_ms: list[float] = []

    def start(self) -> None:
        self._cpu_s = time.process_time()
        self._started_s = time.perf_counter()
        self.end_s = self._started_s + self._job.duration_s

    def done(self) -> Done:
        elapsed_s = time.perf_counter() - self._started_s
        cpu_s = time.process_time() - self._cpu_s
        transactions = len(self.latencies_ms)
        records = transactions * self._job.records
        if transactions == 1:
            self.latencies_ms *= 2  # statistics.quantiles needs at least two
        centiles = statistics.quantiles(self.latencies_ms, n=100, method="inclusive")
        return Done(transactions / elapsed_s, records / elapsed_s, centiles[49], centiles[98], cpu_s / records * 1e6)


def _names(job: Job) -> Iterator[str]:
    run = uuid.uuid4().hex[:8]
    return (f"bench-{run}-{index}" for index in range(job.producers))


def is_cold(job: Job, made: int, warm_until_s: float) -> bool:
    """Return whether a producer that has made some transactions is to warm up further."""
    is_time = made < _WARM_UP_TRANSACTIONS or time.perf_counter() < warm_until_s
    return is_time and made < job.most_to_warm_up


def measure_threads(client: SyncClient, job: Job) -> Done:
    """Measure a client for threads, with a thread for each producer."""
    stopwatch = Stopwatch(job)
    ready = threading.Barrier(job.producers, stopwatch.start)
    failures: list[BaseException] = []

    def run(transact: Transact) -> None:
        try:
            warm_until_s, made = time.perf_counter() + _WARM_UP_S, 0
            while is_cold(job, made, warm_until_s):
                transact()
                made += 1
            ready.wait()
            began_s = time.perf_counter()
            while began_s < stopwatch.end_s and made < job.most_transactions:
                transact()
                made += 1
                now_s = time.perf_counter()
                stopwatch.latencies_ms.append((now_s - began_s) * 1000)
                began_s = now_s
        except BaseException as error:
            failures.append(error)
            ready.abort()

    with ExitStack() as producers:
        opened = [producers.enter_context(client(job, name)) for name in _names(job)]
        threads = [threading.Thread(target=run, args=(transact,)) for transact in opened]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return stopwatch.done()


async def measure_tasks(client: AsyncClient, job: Job) -> Done:
    """Measure a client for asyncio, with a task for each producer."""
    stopwatch = Stopwatch(job)
    ready = asyncio.Barrier(job.producers)

    async def run(transact: TransactAsync) -> None:
        warm_until_s, made = time.perf_counter() + _WARM_UP_S, 0
        while is_cold(job, made, warm_until_s):
            await transact()
            made += 1
        if await ready.wait() == 0:
            stopwatch.start()
        await ready.wait()
        began_s = time.perf_counter()
        while began_s < stopwatch.end_s and made < job.most_transactions:
            await transact()
            made += 1
            now_s = time.perf_counter()
            stopwatch.latencies_ms.append((now_s - began_s) * 1000)
            began_s = now_s

    async with AsyncExitStack() as producers:
        opened = [await producers.enter_async_context(client(job, name)) for name in _names(job)]
        async with asyncio.TaskGroup() as tasks:
            for transact in opened:
                tasks.create_task(run(transact))
        return stopwatch.done()


def measure(client: str, job: Job) -> Done:
    """Run `job` with `client` in this process."""
    if client in SYNC_CLIENTS:
        return measure_threads(SYNC_CLIENTS[client], job)
    import uvloop

    return uvloop.run(measure_tasks(ASYNC_CLIENTS[client], job))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients")
    parser.add_argument("client", choices=[*SYNC_CLIENTS, *ASYNC_CLIENTS])
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--records", type=int, default=1)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--duration-s", type=float, default=1.0)
    chosen = vars(parser.parse_args())
    client = chosen.pop("client")
    json.dump(measure(client, Job(**chosen)).__dict__, sys.stdout)


if __name__ == "__main__":
    main()
