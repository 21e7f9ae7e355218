"""Replaces all input from outside during a simulation: time, random numbers, ids, and the log."""

from __future__ import annotations

import gc
import logging
import random
import secrets
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from dualwrite.client import monotonic
from dualwrite.recipes.core.availability import Availability
from tests.proof.simulation.loop import SimulatedLoop

EPOCH_S: Final = 1_800_000_000
"""The wall clock when a simulation begins."""


POWER_FAILED: Final = "the power failed"
"""The error of a disk without power; a broker that logs it is right."""

Replacement = tuple[Any, str, Any]
"""A module, the name of a function in it, and its replacement."""


@contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Replace functions of modules for a while."""
    before = [getattr(module, name) for module, name, _ in replacements]
    for module, name, function in replacements:
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name, _), original in zip(replacements, before, strict=True):
            setattr(module, name, original)


@contextmanager
def nothing_from_outside(loop: SimulatedLoop, seed: int, expected: Collection[str] = ()) -> Iterator[None]:
    """Let time, random numbers and ids come from the loop and the seed; note errors that are logged as problems.

    `expected`: words of errors that are right.
    """
    drawn = random.Random(f"ids {seed}")

    def wall_s() -> float:
        return EPOCH_S + loop.now_s + loop.current.clock_offset_s

    replacements: list[Replacement] = [
        (time, "monotonic", lambda: loop.now_s),
        (monotonic, "monotonic_s", lambda: loop.now_s),
        (monotonic, "since_boot_s", lambda: loop.now_s),
        (socket, "getaddrinfo", _address_is_name),
        (time, "perf_counter", lambda: loop.now_s),
        (time, "perf_counter_ns", lambda: int(loop.now_s * 1e9)),
        (time, "time", wall_s),
        (Availability.__init__, "__defaults__", (None, None, wall_s)),  # bound before `time.time` was replaced
        (time, "time_ns", lambda: int(wall_s() * 1000) * 1_000_000),
        (uuid, "uuid4", lambda: uuid.UUID(int=drawn.getrandbits(128), version=4)),
        (secrets, "choice", drawn.choice),
        (secrets, "token_bytes", drawn.randbytes),
        (threading.Thread, "start", _no_thread),
    ]
    state = random.getstate()
    random.seed(f"global {seed}")
    was_collecting = gc.isenabled()
    gc.disable()  # it would end abandoned coroutines, whenever it comes
    try:
        with replaced(replacements), _log_lines(loop, {*expected, POWER_FAILED}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(state)
        if was_collecting:
            gc.enable()


def _address_is_name(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]


def _no_thread(thread: threading.Thread) -> None:
    raise AssertionError(f"a simulation starts no threads, and this is {thread.name}: its history depends on real time")


class _Lines(logging.Handler):
    """Notes warnings; takes errors for problems."""

    def __init__(self, loop: SimulatedLoop, expected: Collection[str]) -> None:
        super().__init__(logging.WARNING)
        self._loop = loop
        self._expected = expected

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{self._loop.current} logs: {record.getMessage()}"
        if record.levelno >= logging.ERROR and not any(each in text for each in self._expected):
            self._loop.problems.append(f"{text} {record.exc_info[1]!r}" if record.exc_info else text)
        else:
            self._loop.note(text)


@contextmanager
def _log_lines(loop: SimulatedLoop, expected: Collection[str]) -> Iterator[None]:
    handler = _Lines(loop, expected)
    loggers = [logging.getLogger(name) for name in ("dualwrite", "dualwrite.broker_emulator", "spark_sink")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger, level in zip(loggers, (logging.WARNING, logging.ERROR, logging.WARNING), strict=True):
        logger.setLevel(level)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, (level, propagates) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagates
