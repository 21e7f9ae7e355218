"""The members of asyncpg that `dualwrite/recipes/asyncpg/driver.py` changes or reads still mean the same.

A failure says that asyncpg has changed: read the member's replacement, and adapt `driver.py`.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import asyncpg
import pytest
from asyncpg import cursor, prepared_stmt, transaction
from asyncpg.connection import Connection, _Callback
from asyncpg.pool import Pool, PoolConnectionHolder, PoolConnectionProxy
from asyncpg.protocol import Protocol

from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.asyncpg.connection_guard import WatchedProtocol


def source(function: Any) -> str:
    return inspect.getsource(inspect.unwrap(function))


def test_a_connection_keeps_the_attributes_that_are_replaced_in_slots() -> None:
    assert {"_protocol", "_top_xact", "_addr", "_transport", "_log_listeners", "__weakref__"} <= set(
        Connection.__slots__
    )
    assert "_con" in PoolConnectionProxy.__slots__
    assert isinstance(object.__new__(PoolConnectionProxy), asyncpg.Connection)


_SENDS = {"query", "prepare", "bind_execute", "bind_execute_many", "bind", "execute", "copy_in", "copy_out"}


def test_all_that_is_sent_goes_through_the_protocol_of_the_connection() -> None:
    """`WatchedProtocol` stands in front of it: SQL sent in any other way would pass the guard."""
    others = {"close_portal", "close_statement", "close", "abort"}  # without SQL
    coroutines = {name for name in dir(Protocol) if inspect.iscoroutinefunction(getattr(Protocol, name))}
    named = {name for name in dir(Protocol) if name in _SENDS}
    assert named == _SENDS
    assert {name for name in coroutines if not name.startswith("_")} <= _SENDS | others
    assert set(vars(WatchedProtocol)) >= _SENDS
    for module in (cursor, prepared_stmt, transaction):
        assert "_transport" not in inspect.getsource(module)
    assert "self._connection._protocol" in inspect.getsource(prepared_stmt)
    assert "con._protocol" in inspect.getsource(cursor)


def test_the_protocol_has_the_methods_that_our_statements_call() -> None:
    assert all(hasattr(Protocol, name) for name in ("_is_cancelling", "is_in_transaction", "query", "prepare"))


def test_a_transaction_inside_another_is_a_savepoint() -> None:
    """`open_block` lets `_top_xact` be one that was never started; only its isolation level is read."""
    starts = source(transaction.Transaction.start)
    assert "if con._top_xact is None:" in starts
    assert "con._top_xact._isolation" in starts
    assert "'SAVEPOINT {};'" in starts
    assert "con._get_unique_id('savepoint')" in starts
    made = "__asyncpg_{}_{:x}__".format("savepoint", 1)
    assert made.startswith(driver.SAVEPOINT_PREFIX)
    assert "'__asyncpg_{}_{:x}__'" in source(Connection._get_unique_id)


def test_interface_errors_are_raised_before_anything_is_sent() -> None:
    """`CommitMessage` takes one for the proof that COMMIT was not sent; a lost connection raises another."""
    assert not issubclass(asyncpg.InterfaceError, asyncpg.PostgresError)
    assert issubclass(asyncpg.ConnectionDoesNotExistError, asyncpg.PostgresError)
    assert not issubclass(asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError)


def test_listeners_are_kept_with_the_function_that_was_given() -> None:
    """`_is_listening` looks for it."""
    assert "self._log_listeners.add(_Callback.from_callable(callback))" in source(Connection.add_log_listener)
    assert _Callback.from_callable(print).cb is print


def test_a_rollback_is_limited_where_asyncpg_waits_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncpg before 0.32 waits for an earlier statement's cancellation before its own limit begins."""

    class Protocol:
        async def query(self, text: str, _: float) -> str:
            await asyncio.get_running_loop().create_future()
            return text

    class Raw:
        _protocol = Protocol()

        def is_closed(self) -> bool:
            return False

    monkeypatch.setattr(driver, "_ROLLBACK_S", 0.01)
    with pytest.raises(TimeoutError):
        asyncio.run(driver.roll_back(Raw()))


def test_terminate_sends_no_cancel_request() -> None:
    assert "cancel" not in source(Connection.terminate).replace("_clean_tasks", "")
    assert "cancel" not in source(Connection._abort)


def test_a_pool_has_its_free_connections_in_a_queue() -> None:
    """`is_exhausted` looks whether it is empty; it holds open and closed connections."""
    assert "ch = await self._queue.get()" in source(Pool._acquire)
    assert "_queue.put_nowait(" in source(PoolConnectionHolder._release)


@pytest.mark.parametrize("says", ["self._connect(", "self._connect_args", "self._connect_kwargs", "self._init("])
def test_a_pool_opens_connections_by_one_function(says: str) -> None:
    assert says in source(Pool._get_new_connection)
