"""The database connections of a process: one engine per database, which keeps no idle connection.

Spark keeps a Python worker for each core of each executor. If each of them kept a connection, a cluster of ordinary
size would use all connections of a database. So a connection is closed soon after its transaction; a task pays for one
or two new ones. If the database has no free connection, the process waits for one.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from dualwrite.recipes.sqlalchemy.deciding import fileno_of, prepare_nothing
from spark_sink.errors import SinkOptionError
from spark_sink.options import StoreOptions, store_url

_log = logging.getLogger("spark_sink")

DIALECTS: Final = ("postgresql", "mysql", "mariadb", "sqlite")
_SQLITE_BUSY_TIMEOUT_S: Final = 30

LINGER_S: Final = 0.1
"""How long an idle connection is kept: longer than a small task needs between two transactions."""

_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 3.0
_LINE_EVERY_S: Final = 30.0

_FULL_NUMBERS: Final = frozenset({1040, 1203, 1226})
"""MySQL's ER_CON_COUNT_ERROR, ER_TOO_MANY_USER_CONNECTIONS and ER_USER_LIMIT_REACHED."""
_FULL_SENTENCES: Final = (
    "too many clients already",
    "too many connections for",
    "remaining connection slots are reserved",
    "no more connections allowed",  # PgBouncer's max_client_conn
)
"""Messages of refused connections, because the driver does not pass on their SQLSTATE (53300)."""

_LIBPQ: Final = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A server whose machine is gone is noticed after a minute, although it never closed the connection."""

_engines: dict[tuple[int, str, int, int], sa.Engine] = {}


def engine_for(options: StoreOptions) -> sa.Engine:
    """Return this process's engine for the store's database; made once, and never shared with a forked child.

    Raises SinkOptionError without a URL, for an unsupported database, or if its driver is missing.
    """
    url = _url(options)
    key = (os.getpid(), url.render_as_string(hide_password=False), options.timeout_ms, options.connect_timeout_ms)
    if key not in _engines:
        _engines[key] = _new_engine(url, options)
    return _engines[key]


def _url(options: StoreOptions) -> sa.URL:
    try:
        return sa.make_url(store_url(options))
    except sa.exc.ArgumentError as error:
        raise SinkOptionError("commitStore.url is not a SQLAlchemy URL; nothing was written") from error


def _new_engine(url: sa.URL, options: StoreOptions) -> sa.Engine:
    if url.get_backend_name() not in DIALECTS:
        raise SinkOptionError(
            f"the commit store can be in {', '.join(DIALECTS)}, not in {url.get_backend_name()}; nothing was written"
        )
    try:
        if url.get_backend_name() == "sqlite":
            return sa.create_engine(url, connect_args={"timeout": _SQLITE_BUSY_TIMEOUT_S})
        engine = sa.create_engine(
            url,
            poolclass=IdleFreePool,
            isolation_level="READ COMMITTED",
            connect_args=_limits(url, options),
        )
    except (ImportError, sa.exc.NoSuchModuleError) as error:
        raise SinkOptionError(
            f"the driver of {url.drivername}:// cannot be loaded here: {error}; nothing was written. Install it "
            "wherever the sink runs, on executors too: dualwrite[postgres] has psycopg, dualwrite[mysql] pymysql"
        ) from error
    prepare_nothing(engine)
    sa.event.listen(engine, "do_connect", Connecting(url, options))
    return engine


def _limits(url: sa.URL, options: StoreOptions) -> dict[str, Any]:
    """Return the driver's own limits, except those that the URL sets."""
    connect_s = -(-options.connect_timeout_ms // 1000)
    if url.get_backend_name() == "postgresql":
        limits = {"connect_timeout": connect_s, **_LIBPQ} if url.get_driver_name() in ("psycopg", "psycopg2") else {}
    elif url.get_driver_name() == "pymysql":
        silent_s = -(-options.timeout_ms // 1000)
        limits = {"connect_timeout": connect_s, "read_timeout": silent_s, "write_timeout": silent_s}
    else:
        limits = {}
    return {name: value for name, value in limits.items() if name not in url.query}


class Connecting:
    """Makes driver connections: waits while the database has no free one, and limits the server's silence."""

    def __init__(
        self,
        url: sa.URL,
        options: StoreOptions,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_watched = url.get_backend_name() == "postgresql" and url.get_driver_name() == "psycopg"
        self._limit_ms = options.timeout_ms
        self._sleep = sleep
        self._clock = clock

    def __call__(self, dialect: sa.Dialect, record: object, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Handle SQLAlchemy's event `do_connect`. Raises the driver's errors."""
        began_s = self._clock()
        retry_s, next_line_s = _FIRST_RETRY_S, 0.0
        while True:
            try:
                return self._connect(dialect, arguments, keywords)
            except dialect.loaded_dbapi.Error as error:
                waited_s = self._clock() - began_s
                if not is_full(error) or waited_s * 1000 >= self._limit_ms:
                    raise
                if waited_s >= next_line_s:
                    next_line_s = waited_s + _LINE_EVERY_S
                    _log.warning(
                        "the commit store's database has no connection to give (%s); waited for %.0f s, and for %.0f s "
                        "at most", str(error).strip(), waited_s, self._limit_ms / 1000
                    )  # fmt: skip
            self._sleep(retry_s * random.uniform(0.5, 1.5))
            retry_s = min(retry_s * 2, _LONGEST_RETRY_S)

    def _connect(self, dialect: sa.Dialect, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if not self._is_watched:
            return dialect.connect(*arguments, **keywords)
        from spark_sink.store.watched_psycopg import WatchedConnection  # psycopg may not be installed

        connection = WatchedConnection.connect(*arguments, **keywords)
        connection.limit_ms = self._limit_ms
        return connection


def rest(engine: sa.Engine) -> None:
    """Close the idle connections of an engine of `engine_for` now, because its next use is not soon."""
    if isinstance(engine.pool, IdleFreePool):
        engine.pool.dispose()


def is_full(error: BaseException) -> bool:
    """Return whether the database has refused a connection because it has too many."""
    number = error.args[0] if error.args else None
    return number in _FULL_NUMBERS or any(sentence in str(error) for sentence in _FULL_SENTENCES)


class IdleFreePool(Pool):
    """A pool without a limit that closes each connection `LINGER_S` after its last use.

    A connection that its server has closed meanwhile is noticed without a request, because its socket is readable.
    """

    def __init__(self, creator: Any, **settings: Any) -> None:
        super().__init__(creator, **settings)
        self._idle: list[tuple[float, ConnectionPoolEntry]] = []
        self._lock = threading.Lock()
        self._closer: threading.Thread | None = None

    def recreate(self) -> Self:
        """Return an empty pool like this one, as SQLAlchemy wants it after `dispose`."""
        return type(self)(self._creator, **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "recycle": self._recycle,
            "echo": self.echo,
            "logging_name": self._orig_logging_name,
            "reset_on_return": self._reset_on_return,
            "pre_ping": self._pre_ping,
            "_dispatch": self.dispatch,
            "dialect": self._dialect,
        }

    def dispose(self) -> None:
        """Close the idle connections."""
        self._close(float("inf"))

    def status(self) -> str:
        """Describe the pool, for debugging."""
        return f"{type(self).__name__}: {self.idle} idle connections"

    @property
    def idle(self) -> int:
        """The number of open connections that are not in use."""
        with self._lock:
            return len(self._idle)

    def _do_get(self) -> ConnectionPoolEntry:
        while True:
            with self._lock:
                if not self._idle:
                    break
                _, entry = self._idle.pop()
            if not _has_news(entry):
                return entry
            entry.close()
        return self._create_connection()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        with self._lock:
            if self._closer is None:
                closer = threading.Thread(target=self._close_in_time, name="dualwrite-idle", daemon=True)
                try:
                    closer.start()
                except RuntimeError:  # too many threads, or the process ends: the work on it is done
                    record.close()
                    return
                self._closer = closer
            self._idle.append((time.monotonic(), record))

    def _close_in_time(self) -> None:
        while True:
            time.sleep(LINGER_S / 2)
            self._close(time.monotonic() - LINGER_S)
            with self._lock:
                if not self._idle:
                    self._closer = None
                    return

    def _close(self, before_s: float) -> None:
        with self._lock:
            over = [entry for since_s, entry in self._idle if since_s <= before_s]
            self._idle = [each for each in self._idle if each[0] > before_s]
        for entry in over:
            entry.close()


def _has_news(entry: ConnectionPoolEntry) -> bool:
    """Return whether the server has sent an unexpected message (it closes the connection), or has closed it."""
    try:
        fileno = fileno_of(entry.dbapi_connection)
    except Exception:
        return True  # the driver has closed it
    if fileno is None:
        return False
    if not hasattr(select, "poll"):  # Windows, whose select() has no limit on the number of a socket
        return bool(select.select([fileno], [], [], 0)[0])
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))
