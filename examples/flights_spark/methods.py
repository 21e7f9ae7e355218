"""The two methods of writing, and their topics."""

from __future__ import annotations

from enum import StrEnum


class Method(StrEnum):
    """How a query of the application writes."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"

    @property
    def topic(self) -> str:
        return {Method.EXACTLY_ONCE: "flights", Method.AT_LEAST_ONCE: "flights-at-least-once"}[self]
