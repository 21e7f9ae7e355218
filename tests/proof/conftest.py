"""Fixtures of the search and of the simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence millions of log lines about deliberate faults."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
