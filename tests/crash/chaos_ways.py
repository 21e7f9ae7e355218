"""The ways that the chaos test runs side by side, the rows that their blocks lock, and who may fail without Kafka.

Blocks of one way lock the same few rows; those of two ways never do, because no order holds between an outbox and
writers without it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from dualwrite.delivery import Delivery, Direct, Outbox
from tests.crash.chaos_job import Job

RIVAL: Final = "rival"
DIRECT: Final = "direct"
STORE: Final = "store"
OUTBOX: Final = "outbox"
DELIVERIES: Final[Mapping[str, Delivery]] = {
    DIRECT: Direct(),
    STORE: Direct(when_kafka_is_away="store"),
    OUTBOX: Outbox(),
}
"""The deliveries of the pools, one of each way; rivals are direct as well, under one id without a pool."""
WAYS: Final = (RIVAL, *DELIVERIES)
NEED_KAFKA: Final = (RIVAL, DIRECT)
LOCKED_ROWS: Final = 4
"""Of each way."""
LOCKS: Final = 0.6
"""The share of blocks that lock a row, and send records with its key."""


def prefix_of(job: Job, way: str) -> str:
    return f"{job.prefix}-{way}-pool"


def locked_keys() -> list[str]:
    return [f"{way}-{number}" for way in WAYS for number in range(LOCKED_ROWS)]


def key_of(way: str, name: str, chance: random.Random) -> str:
    """Return the key of a block: a locked row's, or its own name."""
    return f"{way}-{chance.randrange(LOCKED_ROWS)}" if chance.random() < LOCKS else name


def way_of_key(key: str) -> str:
    """Return the way whose blocks lock a row."""
    return key.partition("-")[0]


def way_of(name: str) -> str:
    """Return the way of a block, a row or a record by its name: `store3.17/1/5` is one of `store`."""
    return name.partition(".")[0].rstrip("0123456789")
