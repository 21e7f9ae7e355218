"""The virtual clock of a broker under test."""

from __future__ import annotations

from datetime import timedelta

from dualwrite.broker_emulator.emulator import Emulator


class EmulatorClock:
    """A broker's virtual clock, which makes transaction timeouts, expiry and retention testable without waiting."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def now_ms(self) -> int:
        """Return the broker's time in milliseconds since the Unix epoch."""
        return self._emulator.clock.now_ms()

    def advance(self, duration: timedelta | None = None, *, ms: int = 0) -> None:
        """Advance the broker's time. Everything that becomes due has started when this returns.

        Raises ValueError if the duration is less than a millisecond, TypeError if the broker runs on the real clock.
        """
        total_ms = ms + (0 if duration is None else duration // timedelta(milliseconds=1))
        if total_ms <= 0:
            raise ValueError(f"time advances by at least a millisecond, not by {total_ms} ms")
        self._emulator.advance_clock(total_ms)
