"""Log messages of code that runs under a lock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial


class LateLog:
    """Messages noted under a producer's lock, and logged after it is released: a handler may use the producer.

    They are logged in order: while one thread logs, others leave theirs to it, and wait for nothing.
    """

    def __init__(self) -> None:
        self._noted: deque[Callable[[], None]] = deque()
        self._logging = threading.Lock()

    def note(self, logger: logging.Logger, level: int, message: str, *arguments: object) -> None:
        """Note a message."""
        self._noted.append(partial(logger.log, level, message, *arguments))

    def flush(self) -> None:
        """Log the messages noted so far. Call it without the lock."""
        while self._noted and self._logging.acquire(blocking=False):
            try:
                while self._noted:
                    self._noted.popleft()()
            finally:
                self._logging.release()
