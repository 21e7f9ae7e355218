"""The state row of a transactional id: one transaction locks it at a time, and each sees the newest state."""

from __future__ import annotations

import threading
import time

import pytest
import sqlalchemy as sa

from dualwrite.errors import IllegalStateError, RowLockTimeoutError, StateRowError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.testing.conformance.row_store import RowStore
from dualwrite.testing.conformance.site import DEADLINE_S, Site

EMPTY = PreparedTxnState()
FIRST = PreparedTxnState("42:7")


def test_a_waiter_for_the_row_sees_what_its_holder_wrote(site: Site) -> None:
    store, seen = site.store(), list[PreparedTxnState]()

    def wait_for_the_lock() -> None:
        with site.engine.begin() as connection:
            seen.append(store.lock(connection, site.transactional_id, timeout_ms=DEADLINE_S * 1000))

    waiter = threading.Thread(target=wait_for_the_lock, daemon=True)
    with site.engine.begin() as holder:
        assert store.lock(holder, site.transactional_id, timeout_ms=None) == EMPTY
        waiter.start()
        waiter.join(0.2)  # without an exclusive lock, it would not wait
        assert seen == []
        store.write(holder, site.transactional_id, previous=EMPTY, new=FIRST, manifest="")
    waiter.join(DEADLINE_S)
    assert seen == [FIRST]


@pytest.mark.parametrize("timeout_ms", [0, 50, 1100])
def test_waiting_for_the_row_times_out(site: Site, timeout_ms: int) -> None:
    store = site.store()
    with site.engine.connect() as holder, site.engine.connect() as waiter:
        store.lock(holder, site.transactional_id, timeout_ms=None)
        begun_s = time.monotonic()
        with pytest.raises(RowLockTimeoutError):
            store.lock(waiter, site.transactional_id, timeout_ms=timeout_ms)
        assert time.monotonic() - begun_s < DEADLINE_S / 2


def test_a_rollback_releases_the_lock_and_discards_the_state(site: Site) -> None:
    store = site.store()
    with site.engine.connect() as connection:
        store.lock(connection, site.transactional_id, timeout_ms=None)
        store.write(connection, site.transactional_id, previous=EMPTY, new=FIRST, manifest="")
        connection.rollback()
    with site.engine.begin() as connection:
        assert store.lock(connection, site.transactional_id, timeout_ms=DEADLINE_S * 1000) == EMPTY


@pytest.mark.parametrize("manifest", ["{}", ("'\\\\% {}\n" * 10_000)[:60_000]], ids=["short", "long"])
def test_the_manifest_comes_and_goes_with_the_state(site: Site, manifest: str) -> None:
    store = site.store()
    with site.engine.begin() as connection:
        store.lock(connection, site.transactional_id, timeout_ms=None)
        assert store.read_manifest(connection, site.transactional_id) == ""
        store.write(connection, site.transactional_id, previous=EMPTY, new=FIRST, manifest=manifest)
    with site.engine.connect() as connection:
        store.lock(connection, site.transactional_id, timeout_ms=None)
        store.write(connection, site.transactional_id, previous=FIRST, new=EMPTY, manifest="")
        connection.rollback()
    with site.engine.begin() as connection:
        assert store.lock(connection, site.transactional_id, timeout_ms=DEADLINE_S * 1000) == FIRST
        assert store.read_manifest(connection, site.transactional_id) == manifest
        store.write(connection, site.transactional_id, previous=FIRST, new=EMPTY, manifest="")
        assert store.read_manifest(connection, site.transactional_id) == ""


def test_a_state_that_is_not_there_is_not_replaced(site: Site) -> None:
    store = site.store()
    with site.engine.connect() as connection:
        store.lock(connection, site.transactional_id, timeout_ms=None)
        with pytest.raises(StateRowError):
            store.write(connection, site.transactional_id, previous=FIRST, new=PreparedTxnState("42:8"), manifest="")


def test_ids_that_differ_in_case_have_rows_of_their_own(site: Site) -> None:
    store = site.store()
    blocking.run(store.ensure_row(site.transactional_id.upper()))
    with site.engine.begin() as connection:
        store.lock(connection, site.transactional_id, timeout_ms=None)
        store.write(connection, site.transactional_id, previous=EMPTY, new=FIRST, manifest="")
    with site.engine.begin() as connection:
        assert store.lock(connection, site.transactional_id.upper(), timeout_ms=None) == EMPTY


def test_many_threads_create_the_row_at_once(site: Site) -> None:
    errors: list[BaseException] = []
    ready = threading.Barrier(8)

    def make() -> None:
        try:
            store = RowStore(site.direct)
            ready.wait(DEADLINE_S)
            blocking.run(store.ensure_row(site.transactional_id))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=make, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert errors == []
    with site.engine.begin() as connection:
        assert site.store().lock(connection, site.transactional_id, timeout_ms=DEADLINE_S * 1000) == EMPTY


def test_autocommit_is_refused(site: Site) -> None:
    store = site.store()
    engine = site.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(IllegalStateError, match="autocommit"):
        store.lock(connection, site.transactional_id, timeout_ms=None)
    with (
        site.writer() as writer,
        engine.connect() as connection,
        pytest.raises(IllegalStateError, match="autocommit"),
        writer.transaction(connection) as tx,
    ):
        site.put(tx)
    site.assert_both_hold()


def test_a_new_transaction_reads_the_newest_row(site: Site) -> None:
    store = site.store()
    with site.engine.begin() as connection:
        store.lock(connection, site.transactional_id, timeout_ms=None)
        store.write(connection, site.transactional_id, previous=EMPTY, new=FIRST, manifest="")
        assert store.read(connection, site.transactional_id) == FIRST
    with sa.create_engine(site.url, poolclass=sa.NullPool).begin() as connection:
        assert store.lock(connection, site.transactional_id, timeout_ms=None) == FIRST
