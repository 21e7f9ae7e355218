"""One timer for each group of a shard, at its next deadline or before."""

from __future__ import annotations

from collections.abc import Callable

from dualwrite.broker_emulator.clock import Clock, Timer


class Deadlines:
    """Calls `on_due` with the id of a group whose deadline may have passed."""

    def __init__(self, clock: Clock, on_due: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._timers: dict[str, tuple[int, Timer]] = {}

    def has_passed(self, group_id: str, due_ms: int | None) -> bool:
        """Return whether a deadline has passed; set a timer for one that has not. None: the group has no deadline."""
        armed = self._timers.get(group_id)
        if due_ms is None or (armed is not None and armed[0] <= due_ms):
            return False  # an early timer finds nothing due and is set again
        self.forget(group_id)
        delay_ms = due_ms - self._clock.now_ms()
        if delay_ms > 0:
            self.set(group_id, delay_ms)
        return delay_ms <= 0

    def set(self, group_id: str, delay_ms: int) -> None:
        """Call `on_due` after `delay_ms`, and not before."""
        self.forget(group_id)
        timer = self._clock.call_later(delay_ms, lambda: self._fire(group_id))
        self._timers[group_id] = (self._clock.now_ms() + delay_ms, timer)

    def _fire(self, group_id: str) -> None:
        del self._timers[group_id]
        self._on_due(group_id)

    def forget(self, group_id: str) -> None:
        """Cancel the timer of a group."""
        _, timer = self._timers.pop(group_id, (0, None))
        if timer is not None:
            timer.cancel()

    def cancel(self) -> None:
        """Cancel all timers."""
        for group_id in list(self._timers):
            self.forget(group_id)
