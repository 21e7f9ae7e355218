"""Log levels as Kafka's BROKER_LOGGER resources show them (KIP-412), of Python's loggers.

`root` is the emulator's own root, not the process's: a request changes nothing of what else runs in the process. The
nodes of an emulator share their loggers, and levels are gone when the process ends, as Kafka's are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

ROOT: Final = "root"
_PACKAGE: Final = "dualwrite.broker_emulator"

LEVELS: Final[Mapping[str, int]] = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,
    "WARN": logging.WARNING,
}
"""Kafka's names in the order of their letters."""


def levels() -> dict[str, str]:
    """The level of every logger of the emulator."""
    names = sorted(
        name
        for name, logger in logging.Logger.manager.loggerDict.items()
        if name.startswith(f"{_PACKAGE}.") and isinstance(logger, logging.Logger)
    )
    return {name: _level_name(_logger(name)) for name in (ROOT, *names)}


def set_level(name: str, level: str | None) -> None:
    """Give a logger a level of its own, or (None) that of the one above it."""
    _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_PACKAGE if name == ROOT else name)


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    lower = [number for number in LEVELS.values() if number <= level]
    number = max(lower, default=LEVELS["TRACE"])
    return next(name for name, value in LEVELS.items() if value == number)
