"""Why connections were closed, one line each, and never more lines than somebody could read."""

from __future__ import annotations

import logging

LINES_PER_INTERVAL = 50
INTERVAL_S = 10.0


class ClosingLog:
    """Logs the first `LINES_PER_INTERVAL` reasons of every `INTERVAL_S`, and then how many there were besides."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._interval_began_s = float("-inf")
        self._lines = 0
        self._kept_back = 0

    def say(self, now_s: float, message: str, error: BaseException | None = None) -> None:
        """Log one reason; with `error`, which nobody expected, always and with where it came from."""
        if error is not None:
            self._logger.error(message, exc_info=error)
            return
        if now_s - self._interval_began_s >= INTERVAL_S:
            if self._kept_back:
                self._logger.warning("%d more connections were closed for such reasons", self._kept_back)
            self._interval_began_s, self._lines, self._kept_back = now_s, 0, 0
        self._lines += 1
        if self._lines <= LINES_PER_INTERVAL:
            self._logger.warning(message)
        else:
            self._kept_back += 1
