"""Processes forked from one that has loaded everything: each starts in milliseconds instead of a second.

They are processes of their own all the same: forked before any connection, loop or thread of the tests existed.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext
from typing import Final

_PRELOADED: Final = [
    "pytest",
    "tests.apache_kafka.worker",
    "tests.crash.worker",
    "tests.crash.consuming_worker",
    "tests.crash.outbox_worker",
    "tests.crash.chaos_worker",
    "aiokafka",
    "aiosqlite",
    "asyncpg",
    "confluent_kafka",
    "dualwrite.broker_emulator.process.command_line",
    "dualwrite.broker_emulator.storage.data_directory",
    "dualwrite.client.producer_core",
    "kafka",
    "psycopg",
    "pymysql",
    "uvloop",
]


def processes() -> ForkServerContext:
    """Return the context in which test processes start others: one server for all, as there can be no second."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context
