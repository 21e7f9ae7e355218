"""Time that is up for the calls that are meant, and for no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from dualwrite.async_producer import AsyncProducer
from dualwrite.producer import Producer


@contextmanager
def impatient(producer: Producer | AsyncProducer, max_block_ms: int) -> Iterator[None]:
    """Only the calls in this block give up early; those that set the scene have what a busy machine needs."""
    patient = producer._config
    producer._config = dataclasses.replace(patient, max_block_ms=max_block_ms)
    try:
        yield
    finally:
        producer._config = patient
