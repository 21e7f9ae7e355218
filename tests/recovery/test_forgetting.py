"""A Kafka cluster that is gone beside a database that is kept: settled at close, or given up by an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import DropRequest, Emulator, Fault
from dualwrite.errors import AnotherClusterError, IllegalStateError, RetriableError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core import blocking, waiting
from dualwrite.recipes.core.proof import forgotten_text, is_forgotten, is_settled, manifest_of
from dualwrite.recipes.recovery.forgetting import Forgotten, forget_cluster
from dualwrite.recipes.recovery.stored_rows import StoredRow, note
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.cli.conftest import Call, call
from tests.recipes.repairs import Site, Way, let_end, site_of
from tests.recipes.test_repair import store
from tests.recipes.tiers import ROWS, rows, write
from tests.recovery.test_another_cluster import next_cluster
from tests.support.databases import Database, SqliteDatabase
from tests.support.topics import read_topic

__all__ = ["call", "store"]  # fixtures

every_tier = pytest.mark.parametrize("tier", list(Tier))


def published(emulator: Emulator) -> list[str | None]:
    return [value for _, value in read_topic(emulator.bootstrap_servers, "orders")]


def writer_in(emulator: Emulator, store: Database) -> DualWriter:
    return DualWriter(store.aside, transactional_id="tid", bootstrap_servers=emulator.bootstrap_servers)


# ---- settled at close -----------------------------------------------------------------------------------------------


@every_tier
def test_a_confirmed_transaction_is_settled_at_close(store: Database, tier: Tier) -> None:
    with site_of(tier, store) as site:
        with site.writer() as writer:
            write(writer, "1")
            write(writer, "2")
            assert manifest_of(site.row(), site.text() or "") is not None
        assert is_settled(site.row(), site.text())
    with next_cluster(tier) as another, writer_in(another, store) as writer:
        write(writer, "later")
        assert published(another) == ["later"]
        assert rows(store.aside) == ["1", "2", "later"]


def test_a_pool_settles_its_ids_at_close(store: Database) -> None:
    def write_some(bootstrap_servers: str, *values: str) -> None:
        with DualWriter(store.aside, prefix="pooled", bootstrap_servers=bootstrap_servers) as pool:
            for value in values:
                with pool.transaction() as tx:
                    tx.send("orders", value)

    with Emulator(topics={"orders": 2}) as emulator:
        write_some(emulator.bootstrap_servers, "1", "2")
        with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
            cluster_id = admin.describe_cluster().cluster_id
    with store.aside.connect() as connection:
        columns = kafka_transaction_state.c
        found = connection.execute(sa.select(columns.prepared_transaction_state, columns.manifest)).all()
    assert {manifest for _, manifest in found} == {f"committed {state} {cluster_id} orders" for state, _ in found}
    with Emulator(topics={"orders": 2}) as another:
        write_some(another.bootstrap_servers, "3")
        assert published(another) == ["3"]


@pytest.fixture
def postgres_store(postgres: Database) -> Database:
    return postgres


def test_closing_in_another_loop_leaves_the_row_as_it_is(postgres_store: Database) -> None:
    """The connections belong to the loop that is gone."""
    store = postgres_store
    with Emulator(topics={"orders": 2}) as emulator:
        engine = create_async_engine(store.url, poolclass=sa.NullPool)
        where: dict[str, Any] = {"transactional_id": "tid", "bootstrap_servers": emulator.bootstrap_servers}
        writer = AsyncDualWriter(engine, **where)

        async def write_one() -> None:
            async with writer.transaction() as tx:
                tx.send("orders", "1")

        asyncio.run(write_one())
        asyncio.run(writer.close())
        asyncio.run(engine.dispose())
        with store.aside.connect() as connection:
            text = connection.scalar(sa.select(kafka_transaction_state.c.manifest))
        assert str(text).startswith('{"format"')


@every_tier
def test_an_unconfirmed_transaction_is_not_settled(store: Database, tier: Tier) -> None:
    with site_of(tier, store) as site:
        with site.writer(max_block_ms=4_000) as writer:
            site.emulator.faults.add(Fault(api="EndTxn", action=DropRequest(), count=None))
            write(writer, "decided")
            assert writer.in_doubt == site.row()
        assert site.manifest().prepared_state == site.row()
        site.emulator.faults.clear()
        site.recover()
        assert is_settled(site.row(), site.text())
        site.assert_agreed("decided")


def test_a_row_whose_proof_was_found_by_a_take_over_is_left(store: Database) -> None:
    """Kafka has confirmed nothing to this process, which may have believed that the evidence is gone."""
    with site_of(Tier.STORED_PAIR, store) as site:
        site.decided()
        row, text = site.row(), site.text()
        with site.writer() as writer, pytest.raises(ZeroDivisionError), writer.transaction() as tx:
            tx.send("orders", "rolled back")
            _ = 1 / 0
        assert (site.row(), site.text()) == (row, text)


def test_the_row_of_another_process_is_left_to_that_process(store: Database) -> None:
    with site_of(Tier.KEEP_PREPARED, store) as site:
        with site.writer() as second:
            with site.writer() as first:
                write(first, "1")
                write(second, "2")
                text = site.text()
            assert site.text() == text
        assert is_settled(site.row(), site.text())


# ---- given up -------------------------------------------------------------------------------------------------------


@contextmanager
def gone(tier: Tier, store: Database) -> Iterator[tuple[Site, Emulator, str]]:
    """A dual write in doubt in one cluster, and the cluster that replaces it; with the id of the first one."""
    with site_of(tier, store) as site, next_cluster(tier) as another:
        site.write("before")
        site.decided()
        yield site, another, site.manifest().cluster_id


def forget(store: Database, emulator: Emulator, cluster_id: str, *, apply: bool = True) -> list[Forgotten]:
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
        return forget_cluster(store.aside, cluster_id, admin=admin, prefix="", apply=apply)


@every_tier
def test_the_id_goes_on_in_the_next_cluster(store: Database, tier: Tier) -> None:
    with gone(tier, store) as (site, another, cluster_id):
        row, text = site.row(), site.text()
        with writer_in(another, store) as writer, pytest.raises(AnotherClusterError) as refused:
            write(writer, "refused")
        assert f"`dualwrite recover --forget-cluster {cluster_id} --all`" in str(refused.value)
        (planned,) = forget(store, another, cluster_id, apply=False)
        assert (planned.transactional_id, planned.prepared_state, planned.changed) == ("tid", str(row), False)
        (part,) = site.manifest().partitions
        assert (planned.records, planned.topic_partitions) == (1, (f"orders-{part.partition}",))
        assert (site.row(), site.text()) == (row, text)
        assert [(each.changed, each.error) for each in forget(store, another, cluster_id)] == [(True, None)]
        assert (site.row(), site.text()) == (row, forgotten_text(row, text or ""))
        assert forget(store, another, cluster_id) == []
        for _ in range(2):
            with writer_in(another, store) as writer:
                assert writer.recover() == []
            assert is_forgotten(row, site.text() or ""), "it is never taken for committed"
            report = site.serviced(bootstrap_servers=another.bootstrap_servers)
            assert (report.found, report.is_clean, report.settled) == ((), True, 1)
        with writer_in(another, store) as writer:
            write(writer, "later")
        assert published(another) == ["later"]
        assert rows(store.aside) == ["before", "decided", "later"]
        assert is_settled(site.row(), site.text())


@pytest.mark.parametrize("is_aborted", [False, True])
@every_tier
def test_a_cluster_that_comes_back_first_is_queried_as_before(store: Database, tier: Tier, is_aborted: bool) -> None:
    """The row has kept its state and its manifest, so both sides agree there, also where the broker has aborted it."""
    with gone(tier, store) as (site, another, cluster_id):
        if is_aborted:
            let_end(site, Way.OPERATOR)
        forget(store, another, cluster_id)
        assert site.recover() is (Outcome.REPAIRED if is_aborted else Outcome.COMMITTED)
        site.write("later")
        site.assert_agreed("before", "decided", "later")


def test_a_cluster_that_comes_back_later_is_refused(store: Database) -> None:
    """The row names a transaction of the next cluster then, until that is settled."""
    with gone(Tier.STORED_PAIR, store) as (site, another, cluster_id):
        forget(store, another, cluster_id)
        where: dict[str, Any] = {"transactional_id": "tid", "bootstrap_servers": another.bootstrap_servers}
        with DualWriter(store.aside, **where) as writer:
            write(writer, "later")
            with site.writer() as back, pytest.raises(AnotherClusterError):
                write(back, "refused")
            write(writer, "last")
        assert published(another) == ["later", "last"]


def test_a_cluster_that_answers_is_not_forgotten(store: Database) -> None:
    with gone(Tier.STORED_PAIR, store) as (site, _, cluster_id):
        text = site.text()
        for apply in (False, True):
            with pytest.raises(IllegalStateError, match="it is the one that answers"):
                forget(store, site.emulator, cluster_id, apply=apply)
        assert site.text() == text
        assert site.recover() is Outcome.COMMITTED


def test_other_clusters_and_settled_rows_are_left(store: Database) -> None:
    with gone(Tier.STORED_PAIR, store) as (site, another, cluster_id):
        text = site.text()
        assert forget(store, another, f"not-{cluster_id}") == []
        assert site.text() == text
        site.recover()
        assert forget(store, another, cluster_id) == []
        assert is_settled(site.row(), site.text())


@pytest.mark.parametrize("meanwhile", ["completed", "written on"])
def test_a_row_that_has_changed_since_it_was_shown_is_left(store: Database, meanwhile: str) -> None:
    """An hour may pass between the look and the lock."""
    with gone(Tier.STORED_PAIR, store) as (site, another, cluster_id):
        text = site.text() or ""
        (found,) = forget(store, another, cluster_id, apply=False)
        seen, noted = StoredRow(str(site.row()), text), forgotten_text(site.row(), text)
        site.recover()
        if meanwhile == "written on":
            site.write("more")
        row, now = site.row(), site.text()
        database = SqlAlchemyDatabase(store.aside, create_table=False, schema=None, only_recovers=True)
        with pytest.raises(RetriableError, match="nothing was changed: stop it"):
            blocking.run(note(database, found.transactional_id, seen, noted, 100))
        assert (site.row(), site.text()) == (row, now)


def test_an_id_that_is_in_use_is_left(postgres_store: Database) -> None:
    store = postgres_store
    ROWS.metadata.create_all(store.aside)
    with gone(Tier.STORED_PAIR, store) as (site, another, cluster_id):
        text = site.text()
        with store.engine.begin() as connection:
            connection.execute(sa.select(kafka_transaction_state).with_for_update())
            (found,) = forget(store, another, cluster_id)
        assert (found.changed, found.error is not None) == (False, True)
        assert site.text() == text


# ---- by command -----------------------------------------------------------------------------------------------------


def test_the_command_lists_the_transactions_to_give_up_and_asks(call: Call, store: SqliteDatabase) -> None:
    with gone(Tier.BOUNDED, store) as (site, another, cluster_id):
        url = store.url.render_as_string(hide_password=False)
        options = ("recover", "--bootstrap-server", another.bootstrap_servers, "--database", url)
        text = site.text()
        unnamed = call(*options, "--forget-cluster", cluster_id)
        assert (unnamed.code, "no ids selected" in unnamed.err) == (2, True)
        planned = call(*options, "--all", "--forget-cluster", cluster_id)
        assert planned.code == 1
        assert "gives up the proof of 1 dual write (1 record) that the database has committed" in planned.err
        assert f"tid {site.row()}: 1 record in orders-" in planned.err
        assert planned.out.splitlines() == [
            "0 to resolve, 0 left, 0 waiting, 0 settled",
            "1 dual write would be given up; nothing was changed: --apply does it",
        ]
        asked = call(*options, "--all", "--forget-cluster", cluster_id, "--apply")
        assert (asked.code, "pass --yes" in asked.err) == (2, True)
        assert site.text() == text
        done = call(*options, "--all", "--forget-cluster", cluster_id, "--apply", "--yes", "--json")
        assert done.code == 0
        (forgotten,) = done.document["forgotten"]
        assert (forgotten["transactional_id"], forgotten["changed"], forgotten["error"]) == ("tid", True, None)
        again = call(*options, "--all", "--forget-cluster", cluster_id, "--apply", "--yes")
        assert (again.code, "no row names a transaction" in again.err) == (0, True)
        there = ("recover", "--bootstrap-server", site.emulator.bootstrap_servers, "--database", url, "--all")
        refused = call(*there, "--forget-cluster", cluster_id, "--apply", "--yes")
        assert (refused.code, "it is the one that answers" in refused.err) == (2, True)


def test_a_move_ends_although_one_writer_started_too_early(call: Call, store: SqliteDatabase) -> None:
    """Its id is completed in the next cluster; the old one, which knows another commit, then has nothing to report."""
    tier = Tier.BOUNDED
    url = store.url.render_as_string(hide_password=False)
    with site_of(tier, store) as site, next_cluster(tier) as another:
        site.write("before")
        where: dict[str, Any] = {"bootstrap_servers": another.bootstrap_servers}
        early = DualWriter(store.aside, transactional_id="tid", **where)
        write(early, "early")

        def recover(bootstrap_servers: str) -> Any:
            done = call(
                *("recover", "--bootstrap-server", bootstrap_servers, "--database", url),
                *("--all", "--min-age", 0, "--apply", "--json"),
            )
            return done.code, [each["action"] for each in done.document["found"]]

        assert recover(site.emulator.bootstrap_servers) == (1, ["another-cluster"])
        assert recover(another.bootstrap_servers) == (0, [])
        assert recover(site.emulator.bootstrap_servers) == (0, [])
        write(early, "later")
        early.close()
        assert published(another) == ["early", "later"]


def test_a_pool_that_took_a_refused_id_over_waits_before_the_next_attempt(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt raises the id's epoch, and is logged; only a person can help."""
    monkeypatch.setitem(waiting._PAUSES_S, AnotherClusterError, 3600.0)
    with gone(Tier.STORED_PAIR, store) as (_, another, _):
        with store.aside.begin() as connection:
            connection.execute(sa.text("UPDATE kafka_transaction_state SET transactional_id = 'pooled-0'"))
        with DualWriter(store.aside, prefix="pooled", bootstrap_servers=another.bootstrap_servers) as pool:
            blocking.run(pool.pool.connect())
            first, second = (blocking.run(pool.pool.maintenance.resolve_once())[0] for _ in range(2))
    assert [type(error) for error in first] == [AnotherClusterError]
    assert second == []
