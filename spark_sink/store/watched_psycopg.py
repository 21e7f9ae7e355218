"""A psycopg connection whose server may not be silent for longer than a limit; only for PostgreSQL with psycopg."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from spark_sink.options import DEFAULT_STORE_TIMEOUT_MS
from spark_sink.store.silence import Wait, watch


class WatchedConnection(psycopg.Connection[Any]):
    """Everything that waits for the server goes through `wait`, or is a COMMIT that must not be cancelled."""

    limit_ms = DEFAULT_STORE_TIMEOUT_MS
    """How long the server may be silent. Its end leaves the connection closed."""

    def wait(self, *arguments: Any, **keywords: Any) -> Any:
        """Wait as psycopg does. Raises OperationalError if the server was silent for too long."""
        with self._watched("a statement"):
            return super().wait(*arguments, **keywords)

    def commit(self) -> None:
        """Commit. Raises OperationalError if the server was silent for too long; then the outcome is not known."""
        with self._watched("COMMIT"):
            super().commit()

    @contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        if self.closed:
            yield  # psycopg has the right error for that
            return
        wait = Wait(what, self.pgconn.socket, self.limit_ms / 1000, time.monotonic())
        try:  # around the beginning, too: a wait that nothing ends shuts down whichever socket gets the number next
            watch().begin(wait)
            yield
        except psycopg.OperationalError as error:
            if not wait.was_ended:
                raise
            raise psycopg.OperationalError(
                f"no response to {what} within {self.limit_ms} ms (commitStore.timeoutMs)"
            ) from error
        finally:
            watch().end(wait)
