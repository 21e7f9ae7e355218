"""Short timeouts for the calls under test, and for no others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from dualwrite.async_producer import AsyncProducer
from dualwrite.producer import Producer
from tests.support.conditions import until

E = TypeVar("E", bound=Exception)


@contextmanager
def impatient(producer: Producer | AsyncProducer, max_block_ms: int) -> Iterator[None]:
    """Time out early in this block only; the preparations have the time that a busy machine needs."""
    patient = producer.max_block_ms
    producer.max_block_ms = max_block_ms
    try:
        yield
    finally:
        producer.max_block_ms = patient


def until_said(words: str, error: type[E], call: Callable[[], Any]) -> E:
    """Return the error of a call, repeated until it has `words`: a busy machine may not meet the cause in time."""
    seen: list[E] = []

    def is_said() -> bool:
        with pytest.raises(error) as raised:
            call()
        seen.append(raised.value)
        return re.search(words, str(raised.value)) is not None

    until(is_said)
    return seen[-1]
