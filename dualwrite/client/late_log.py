"""Log messages of code that must go on if a handler of the application fails, and of code that runs under a lock."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial

from dualwrite.guarded import pass_on_signal


def log_guarded(
    logger: logging.Logger, level: int, message: str, *arguments: object, exc_info: bool = False, stacklevel: int = 1
) -> None:
    """Log a message, without an error if a handler of the application fails."""
    try:
        logger.log(level, message, *arguments, exc_info=exc_info, stacklevel=stacklevel + 1)
    except Exception as error:
        pass_on_signal(error)
        if logging.raiseExceptions:
            traceback.print_exc()


class LateLog:
    """Messages noted under a producer's lock, and logged after it is released: a handler may use the producer.

    As a context manager around the lock it logs them when the lock is released, by the lock's own C code: a generator's
    `with` would keep a lock while the traceback of a signal handler's exception is alive.
    """

    def __init__(self) -> None:
        self._noted: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.flush()

    def note(self, logger: logging.Logger, level: int, message: str, *arguments: object) -> None:
        """Note a message."""
        self._noted.append(partial(log_guarded, logger, level, message, *arguments))

    def flush(self) -> None:
        """Log the messages noted so far. Call it without the lock. Two threads that log at once may mix their order."""
        while self._noted:
            try:
                log = self._noted.popleft()
            except IndexError:  # another thread logs it
                return
            log()
