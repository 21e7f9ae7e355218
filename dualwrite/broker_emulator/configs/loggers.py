"""The levels of Python's loggers as Kafka's BROKER_LOGGER resources (KIP-412).

`root` is the root of the emulator's loggers, not of the process: requests cannot change other loggers. The nodes of an
emulator share their loggers. As in Kafka, levels last until the process ends.
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
"""Python's levels by Kafka's names, in alphabetical order."""


def levels() -> dict[str, str]:
    """Return the level of every logger of the emulator."""
    names = sorted(
        name
        for name, logger in logging.Logger.manager.loggerDict.items()
        if name.startswith(f"{_PACKAGE}.") and isinstance(logger, logging.Logger)
    )
    return {name: _level_name(_logger(name)) for name in (ROOT, *names)}


def set_level(name: str, level: str | None) -> None:
    """Set the level of a logger, or (None) inherit its parent's."""
    _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_PACKAGE if name == ROOT else name)


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    lower = [number for number in LEVELS.values() if number <= level]
    number = max(lower, default=LEVELS["TRACE"])
    return next(name for name, value in LEVELS.items() if value == number)
