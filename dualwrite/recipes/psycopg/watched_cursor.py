"""Cursors that report their statements to the watch of their connection, if there is one (`connection_guard.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import cache
from typing import Any, Final

import psycopg
from psycopg.sql import as_string

from dualwrite.recipes.psycopg.driver import AnyConnection

WATCH: Final = "_dualwrite_watch"
"""The attribute of a connection that holds its watch."""


def _text(query: Any, connection: AnyConnection) -> str:
    if isinstance(query, str):
        return query
    return query.decode(errors="replace") if isinstance(query, bytes) else as_string(query, connection)


class _Watched:
    """Marks the cursor classes that report to a watch."""

    __slots__ = ()


@cache
def watched_cursor(factory: Any) -> Any:
    """Derive a cursor class that reports its statements to its connection's watch, if there is one."""
    if issubclass(factory, _Watched):
        return factory
    return _awaited_cursor(factory) if issubclass(factory, psycopg.AsyncCursor) else _blocking_cursor(factory)


def _blocking_cursor(factory: Any) -> Any:
    class WatchedCursor(_Watched, factory):  # type: ignore[misc]
        __slots__ = ()

        def execute(self, query: Any, params: Any = None, **keywords: Any) -> Any:
            watch = vars(self._conn).get(WATCH)
            if watch is None:  # every statement of Django outside of dual writes; super() would double the cost
                return factory.execute(self, query, params, **keywords)
            watch.running += 1
            try:
                savepoint = watch.before(query if type(query) is str else _text(query, self._conn))
                try:
                    executed = factory.execute(self, query, params, **keywords)
                    if savepoint is not None:
                        watch.after(savepoint)
                except BaseException as error:
                    watch.failed(error, savepoint)
                    raise
            finally:
                watch.running -= 1
            return executed

        def executemany(self, query: Any, *arguments: Any, **keywords: Any) -> Any:
            with _in_parts(self, query):
                return super().executemany(query, *arguments, **keywords)

        def stream(self, query: Any, *arguments: Any, **keywords: Any) -> Iterator[Any]:
            with _in_parts(self, query):
                yield from super().stream(query, *arguments, **keywords)

        @contextmanager
        def copy(self, statement: Any, *arguments: Any, **keywords: Any) -> Iterator[Any]:
            with _in_parts(self, statement), super().copy(statement, *arguments, **keywords) as copy:
                yield copy

    return WatchedCursor


def _awaited_cursor(factory: Any) -> Any:
    class WatchedAsyncCursor(_Watched, factory):  # type: ignore[misc]
        __slots__ = ()

        async def execute(self, query: Any, *arguments: Any, **keywords: Any) -> Any:
            watch = vars(self._conn).get(WATCH)
            if watch is None:  # kept beyond the block
                return await super().execute(query, *arguments, **keywords)
            watch.running += 1
            try:
                savepoint = watch.before(query if type(query) is str else _text(query, self._conn))
                try:
                    executed = await super().execute(query, *arguments, **keywords)
                    if savepoint is not None:
                        watch.after(savepoint)
                except BaseException as error:
                    watch.failed(error, savepoint)
                    raise
            finally:
                watch.running -= 1
            return executed

        async def executemany(self, query: Any, *arguments: Any, **keywords: Any) -> Any:
            with _in_parts(self, query):
                return await super().executemany(query, *arguments, **keywords)

        async def stream(self, query: Any, *arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
            with _in_parts(self, query):
                async with aclosing(super().stream(query, *arguments, **keywords)) as rows:
                    async for row in rows:
                        yield row

        @asynccontextmanager
        async def copy(self, statement: Any, *arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
            with _in_parts(self, statement):
                async with super().copy(statement, *arguments, **keywords) as copy:
                    yield copy

    return WatchedAsyncCursor


@contextmanager
def _in_parts(cursor: Any, query: Any) -> Iterator[None]:
    """Watch a statement that may fail in the client when the server has executed a part of it."""
    watch = vars(cursor.connection).get(WATCH)
    if watch is None:
        yield
        return
    watch.running += 1
    try:
        watch.before_other(_text(query, cursor.connection))
        try:
            yield
        except GeneratorExit:  # the caller needs no more rows of a stream
            raise
        except BaseException as error:
            watch.failed(error, None)
            raise
    finally:
        watch.running -= 1
