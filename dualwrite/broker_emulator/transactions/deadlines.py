"""Which ids have to be looked at, and from when on, so that a scan costs nothing for all the others."""

from __future__ import annotations

import heapq


class Deadlines:
    """Names by the time at which something may be due for them. Pure: whether it is, the caller finds out.

    A name has one deadline, the earliest that was given. So a name whose time moves on again and again costs nothing
    meanwhile: it comes out once at the old time and is given its present one then.
    """

    __slots__ = ("_by_name", "_heap")

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def look_at(self, name: str, deadline_ms: int) -> None:
        """Have `name` come out at `deadline_ms`, unless it does so earlier anyway."""
        known_ms = self._by_name.get(name)
        if known_ms is None or deadline_ms < known_ms:
            self._by_name[name] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, name))

    def take_due(self, now_ms: int) -> list[str]:
        """The names whose deadline has come, which are forgotten with that."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heapq.heappop(self._heap)
            if self._by_name.get(name) == deadline_ms:  # otherwise an earlier one took its place
                del self._by_name[name]
                due.append(name)
        return due
