"""Short timeouts for the calls under test, and for no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dualwrite.async_producer import AsyncProducer
from dualwrite.producer import Producer


@contextmanager
def impatient(producer: Producer | AsyncProducer, max_block_ms: int) -> Iterator[None]:
    """Time out early in this block only; the preparations have the time that a busy machine needs."""
    patient = producer.max_block_ms
    producer.max_block_ms = max_block_ms
    try:
        yield
    finally:
        producer.max_block_ms = patient
