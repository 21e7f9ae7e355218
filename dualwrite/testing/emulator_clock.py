"""The time of a broker under test."""

from __future__ import annotations

from datetime import timedelta

from dualwrite.broker_emulator.emulator import Emulator


class EmulatorClock:
    """The virtual clock of a broker: transaction timeouts, expiry and retention take no time to test."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def now_ms(self) -> int:
        """The broker's time, in milliseconds since the Unix epoch."""
        return self._emulator.clock.now_ms()

    def advance(self, duration: timedelta | None = None, *, ms: int = 0) -> None:
        """Let time pass for the broker. What became due meanwhile has begun when this returns.

        Raises ValueError for a duration that is not positive, TypeError where the broker runs on the real clock.
        """
        total_ms = ms + (0 if duration is None else duration // timedelta(milliseconds=1))
        if total_ms <= 0:
            raise ValueError(f"time moves on by at least a millisecond, not by {total_ms} ms")
        self._emulator.advance_clock(total_ms)
