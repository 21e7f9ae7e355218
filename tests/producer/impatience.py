"""Short timeouts for the calls under test, and for no others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dualwrite.async_producer import AsyncProducer
from dualwrite.producer import Producer
from tests.support.conditions import until


@contextmanager
def impatient(producer: Producer | AsyncProducer, max_block_ms: int) -> Iterator[None]:
    """Time out early in this block only; the preparations have the time that a busy machine needs."""
    patient = producer.max_block_ms
    producer.max_block_ms = max_block_ms
    try:
        yield
    finally:
        producer.max_block_ms = patient


def until_said(words: str, error: type[Exception], call: Callable[[], Any]) -> None:
    """Repeat a call until its error has `words`: on a busy machine, its time may be up before it meets the cause."""

    def is_said() -> bool:
        with pytest.raises(error) as raised:
            call()
        return re.search(words, str(raised.value)) is not None

    until(is_said)
