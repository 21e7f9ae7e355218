"""An outbox on a database that crashes, fails over, or lacks its standby, while the commit of a block is in doubt."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Outbox
from dualwrite.errors import DualWriteError, OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.pool import outbox_publisher
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, PsycopgDualWriter
from dualwrite.testing.network_proxy import NetworkProxy
from tests.crash.psycopg_scenario import conninfo_of
from tests.durability.faces import TABLE, TOPIC, rows
from tests.recipes.pools import QUIET_LEASE_MS
from tests.support.conditions import until
from tests.support.postgres_pair import PostgresNode, PostgresPair
from tests.support.topics import read_topic

SILENT = Outbox(publishes=False)
DEADLINE_S = 60
PATIENT = {"lease_ms": QUIET_LEASE_MS, "resolve_timeout_ms": 60_000}


def pool_on(url: sa.URL, emulator: Emulator, outbox: Outbox | None = None, **settings: Any) -> PsycopgDualWriter:
    return PsycopgDualWriter(
        conninfo_of(url),
        prefix="p",
        bootstrap_servers=emulator.bootstrap_servers,
        delivery=outbox or Outbox(),
        **{"lease_ms": 300, "lock_timeout_ms": 1_000, "resolve_timeout_ms": 1_000} | settings,
    )


def put(tx: PsycopgDualTransaction, number: int) -> None:
    tx.connection.execute("INSERT INTO events VALUES (%s)", (number,))
    tx.send(TOPIC, value=str(number))


def write(pool: PsycopgDualWriter, number: int) -> PsycopgDualTransaction:
    with pool.transaction() as tx:
        put(tx, number)
    return tx


def records(emulator: Emulator) -> list[int]:
    return sorted(int(value) for _, value in read_topic(emulator.bootstrap_servers, TOPIC))


def publish_all(node: PostgresNode, emulator: Emulator) -> None:
    with pool_on(node.url, emulator) as pool:

        def is_done() -> bool:
            with suppress(DualWriteError, psycopg.Error):
                had_lease = pool.status.publishes_outbox  # it may get the lease right after a recovery
                pool.recover()
                return had_lease
            return False

        until(is_done)


# ---- a standby that is away -----------------------------------------------------------------------------------------


@pytest.fixture
def emptied(pair: PostgresPair, emulator: Emulator) -> PostgresPair:
    """Block 1 is done, and the standby is away."""
    pair.primary.ask(TABLE)
    with pool_on(pair.primary.url, emulator) as pool:
        write(pool, 1)
    assert records(emulator) == [1]
    pair.standby.crash()
    return pair


def given_up(pool: PsycopgDualWriter, pair: PostgresPair) -> PsycopgDualTransaction:
    """Begin block 2, and end the wait of its COMMIT for the standby."""
    begun: list[PsycopgDualTransaction] = []

    def write_two() -> None:
        with pool.transaction() as tx:
            begun.append(tx)
            put(tx, 2)

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write_two)
        until(lambda: pair.primary.waiting_backends == 1)
        pair.primary.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        error = writing.exception(DEADLINE_S)
    assert isinstance(error, OutcomeUnknown), error
    assert rows(pair.primary.url) == [1, 2]
    return begun[0]


@pytest.fixture
def silent(emptied: PostgresPair, emulator: Emulator) -> Iterator[PsycopgDualWriter]:
    pool = pool_on(emptied.primary.url, emulator, SILENT)
    with suppress(DualWriteError, psycopg.Error):  # of its leases, which are not durable either
        pool.pool.start()
    yield pool
    pool.close()


def test_a_block_is_not_published_before_it_is_durable(
    emptied: PostgresPair, silent: PsycopgDualWriter, emulator: Emulator
) -> None:
    tx = given_up(silent, emptied)
    assert records(emulator) == [1]
    emptied.start_standby()
    until(lambda: tx.outcome is not None)
    assert tx.outcome is Outcome.STORED
    publish_all(emptied.primary, emulator)
    assert rows(emptied.primary.url) == records(emulator) == [1, 2]


def test_a_block_lost_in_a_failover_is_on_neither_side(
    emptied: PostgresPair, silent: PsycopgDualWriter, emulator: Emulator
) -> None:
    """Another process was about to publish it: its commit waits for the standby, too."""
    tx = given_up(silent, emptied)
    with pool_on(emptied.primary.url, emulator) as other, ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(other.recover)
        until(lambda: emptied.primary.waiting_backends >= 1)
        standby = emptied.fail_over()
        assert publishing.exception(DEADLINE_S) is not None
    publish_all(standby, emulator)
    assert rows(standby.url) == records(emulator) == [1]
    assert tx.outcome is None


# ---- a server that crashes before it hears the COMMIT ---------------------------------------------------------------


@pytest.fixture
def node(empty_node: PostgresNode) -> Iterator[PostgresNode]:
    """A server that writes to the disk only when a COMMIT asks for it."""
    with PostgresPair() as made:
        made.primary.copy(empty_node)
        made.primary.configure("wal_writer_delay = '10s'\n")
        made.primary.start()
        made.primary.ask(TABLE)
        yield made.primary


@pytest.mark.parametrize("is_published", [True, False])
def test_another_transaction_with_the_same_numbers_proves_nothing(
    node: PostgresNode, emulator: Emulator, is_published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the server gives the number of the block, and the id of its transaction, to others."""

    def crashes_at_commit(request: bytes) -> bool:
        if request[5:].rstrip(b"\0") != b"COMMIT":
            return False
        proxy.refuse()  # no connection before the numbers are given again
        seqs.append(newest(node))
        node.crash()
        node.start()
        with pool_on(node.url, emulator, Outbox(publishes=is_published)) as other:
            write(other, 2)
            if is_published:
                until(lambda: records(emulator) == [0, 1, 2])
        proxy.accept_again()
        return True

    seqs: list[object] = []
    with pool_on(node.url, emulator, SILENT) as pool:
        write(pool, 1)
    monkeypatch.setattr(outbox_publisher, "_MOST_IDLE_S", 600.0)  # it shall not send the first COMMIT
    with (
        NetworkProxy.for_database(node.url) as proxy,
        pool_on(proxy.through(node.url), emulator, SILENT, **PATIENT) as pool,
    ):
        pool.recover()  # the background sweeps at its start: nor does it send it
        write(pool, 0)
        until(lambda: pool.status.outbox_blocks > 0)
        with pytest.raises(psycopg.Error), pool.transaction() as tx:
            put(tx, 3)
            node.ask("CHECKPOINT")  # the sequence begins anew at its present number after it
            proxy.cut_at(crashes_at_commit)
        assert tx.outcome is Outcome.ROLLED_BACK
    assert newest(node) == seqs[0], "the number was given again"
    publish_all(node, emulator)
    assert rows(node.url) == records(emulator) == [0, 1, 2]


def newest(node: PostgresNode) -> object:
    """Return the number that was last given to a block."""
    return node.ask("SELECT last_value FROM kafka_transaction_outbox_seq_seq")
