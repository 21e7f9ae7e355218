"""The members of psycopg that `driver.py` and `commit_message.py` change or read still mean the same.

A failure says that psycopg has changed: read the member's replacement, and adapt them.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg import generators, waiting
from psycopg._preparing import Prepare, PrepareManager

CONNECTIONS = [psycopg.Connection, psycopg.AsyncConnection]


def source(function: Any) -> str:
    return inspect.getsource(inspect.unwrap(function))


@pytest.mark.parametrize("connection_class", CONNECTIONS)
def test_begin_is_sent_by_start_query_with_the_command_of_the_connection(connection_class: type[Any]) -> None:
    """`mark_next_begin` replaces `_start_query` on one connection, and sends that command with the mark."""
    begins = source(connection_class._start_query)
    assert "_get_tx_start_command()" in begins
    assert "_exec_command(" in begins
    assert "autocommit" in begins
    module = inspect.getmodule(psycopg.Cursor.__mro__[1])
    assert module is not None
    assert "self._conn._start_query()" in inspect.getsource(module)
    assert callable(psycopg.Pipeline._sync_gen)
    assert callable(psycopg.AsyncPipeline._sync_gen)


@pytest.mark.parametrize("connection_class", CONNECTIONS)
def test_a_connection_waits_for_a_generator(connection_class: type[Any]) -> None:
    assert list(inspect.signature(connection_class.wait).parameters)[:2] == ["self", "gen"]


@pytest.mark.parametrize("connection_class", CONNECTIONS)
def test_commit_is_refused_by_the_attributes_that_the_guard_reads(connection_class: type[Any]) -> None:
    """`is_two_phase` and `is_in_transaction_block` read `_tpc` and `_num_transactions`."""
    refusals = source(connection_class._check_intrans_gen) if hasattr(connection_class, "_check_intrans_gen") else ""
    refusals += source(connection_class._commit_gen)
    assert "self._num_transactions" in refusals
    assert "self._tpc" in refusals


@pytest.mark.parametrize("pool_class", [psycopg_pool.ConnectionPool, psycopg_pool.AsyncConnectionPool])
def test_a_pool_configures_its_connections_by_a_function(pool_class: type[Any]) -> None:
    """`configure_function` reads `_configure`."""
    assert "self._configure(" in source(pool_class)


def test_the_generators_and_waits_that_are_driven_here() -> None:
    for driven in (generators.execute, generators.send, generators.fetch_many):
        assert list(inspect.signature(driven).parameters) == ["pgconn"]
    assert callable(waiting.wait)
    assert inspect.iscoroutinefunction(waiting.wait_async)


def test_statements_are_prepared_by_the_manager_of_the_connection() -> None:
    """`executed` calls it as a cursor does, in the same order and with the same arguments."""
    cursor_base: Any = psycopg.Cursor.__mro__[1]
    steps = source(cursor_base._maybe_prepare_gen) + source(cursor_base._get_prepared)
    steps += source(cursor_base._execute_gen)
    for used in ("_prepared.get(pgq", "prep is Prepare.NO", "_send_prepare(", "_send_query_prepared("):
        assert used in steps
    for used in ("_prepared.maybe_add_to_cache(pgq, prep, name)", "_prepared.validate(key, prep, name, results)"):
        assert used in steps
    assert "_prepared.maintain_gen(self._conn)" in steps
    assert "(query.query, query.types)" in source(PrepareManager.key)


def test_a_statement_that_was_noted_as_prepared_has_its_name() -> None:
    """`commit_message.py` prepares a statement at its first execution, and notes it before it is sent."""
    manager: Any = PrepareManager()
    statement = SimpleNamespace(query=b"UPDATE t", types=())
    assert manager.get(statement, True)[0] is Prepare.SHOULD
    manager.maybe_add_to_cache(statement, Prepare.SHOULD, b"ours")
    assert manager.get(statement, True) == (Prepare.YES, b"ours")
    manager.prepare_threshold = None
    assert manager.get(statement, True)[0] is Prepare.NO
