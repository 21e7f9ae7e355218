"""Names for topics, groups and transactional ids on brokers that tests share."""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def next_name(prefix: str) -> str:
    """Return a new name."""
    return f"{prefix}-{next(_numbers)}"
