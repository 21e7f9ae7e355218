"""Plays sequences on both brokers in step, and shrinks those with different results."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from tests.differential.explained import explanation_of
from tests.differential.logs import ends_of, logs_of
from tests.differential.side import NO_ANSWER, Answer, Side, is_refusal, is_retriable
from tests.differential.steps import Step, make_sequence

_READS: Final = frozenset(
    {
        "consumer_group_describe",
        "describe_groups",
        "describe_producers",
        "describe_transactions",
        "fetch",
        "list_offsets",
        "offset_fetch",
        "offset_for_leader_epoch",
    }
)
_NUMBERED: Final = re.compile(r"(member|producer)-\d+")
_AGREE_WITHIN_S: Final = 1.0
_TOPICS_AT_ONCE: Final = 20
_MOST_ATTEMPTS: Final = 40
_SHRINK_WITHIN_S: Final = 20.0
"""A sequence in which members wait takes seconds, each time it is played."""
_CONFIRMATIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """A sequence whose last response, or whose logs, differ."""

    seed: str
    steps: tuple[Step, ...]
    about: str
    """The API of the last step with the first field that differs, or the log."""
    emulated: Any
    real: Any

    def __str__(self) -> str:
        lines = [f"{self.about} ({self.seed})", *(f"  {step}" for step in self.steps)]
        return "\n".join([*lines, f"  emulator: {self.emulated}", f"  Kafka:    {self.real}"])


class Comparison:
    """Two brokers, and names that no sequence has used yet."""

    def __init__(self, emulated: Side, real: Side, prefix: str = "s") -> None:
        self._emulated, self._real = emulated, real
        self._prefix = prefix
        self._numbers = count(1)
        self._topics: list[tuple[str, list[Any]]] = []
        self._used: list[str] = []
        self.known: Counter[str] = Counter()
        """Known differences, with their counts: a sequence goes on behind one that has no effect."""
        self.unsteady: Difference | None = None
        """The last sequence's differences that did not repeat: Kafka's responses depend on other clients, or on time.
        """
        self.explained: Counter[str] = Counter()
        """The rows of the page of differences that were met."""
        ours, theirs = emulated.versions(), real.versions()
        self.versions = {
            api: (max(ours[api][0], theirs[api][0]), min(ours[api][1], theirs[api][1])) for api in ours if api in theirs
        }

    def compare(self, seed: str) -> Difference | None:
        """Play the sequence of this seed; return how the brokers differ, if they do each time it is played."""
        self.unsteady = None
        found = self.play(seed, make_sequence(seed, self.versions))
        if found is None:
            return None
        for _ in range(_CONFIRMATIONS):
            again = self.play(seed, found.steps)
            if again is None or again.about != found.about:
                self.unsteady = found
                return None
        row = explanation_of(found.about, found.steps)
        if row is not None:
            self.explained[row] += 1
            return None
        return found

    def play(self, seed: str, steps: Sequence[Step]) -> Difference | None:
        """Play these steps with new names."""
        self._begin()
        starts = [ends_of(side) for side in self._sides]
        for number, step in enumerate(steps, 1):
            emulated, real = self._answers(step)
            if emulated == real:
                continue
            about = f"{step.api}{_first_difference(emulated, real)}"
            if about not in self.known:
                return Difference(seed, tuple(steps[:number]), about, emulated, real)
            self.known[about] += 1
            if not (step.api in _READS or (is_refusal(emulated) and is_refusal(real))):
                return None  # from here on they differ in more than responses
        deadline_s = time.monotonic() + _AGREE_WITHIN_S
        while True:
            ours, theirs = (logs_of(side, start) for side, start in zip(self._sides, starts, strict=True))
            differing = next((name for name in ours if ours[name] != theirs[name]), None)
            if differing is None:
                return None
            if f"log: {differing[:12]}" in self.known:
                self.known[f"log: {differing[:12]}"] += 1
                return None
            if time.monotonic() > deadline_s:
                about = f"log: {differing[:12]}"
                return Difference(seed, tuple(steps), about, ours[differing], theirs[differing])
            time.sleep(0.05)

    def shrink(self, difference: Difference) -> Difference:
        """Leave out steps as long as the difference stays the same."""
        attempts = 0
        deadline_s = time.monotonic() + _SHRINK_WITHIN_S
        size = max(len(difference.steps) // 2, 1)
        while True:
            steps, start = difference.steps, 0
            while start < len(difference.steps) and attempts < _MOST_ATTEMPTS:
                attempts = attempts + 1 if time.monotonic() < deadline_s else _MOST_ATTEMPTS
                kept = difference.steps[:start] + difference.steps[start + size :]
                found = self.play(difference.seed, kept) if kept else None
                if found is not None and found.about == difference.about:
                    difference = found
                else:
                    start += size
            if attempts >= _MOST_ATTEMPTS or (size == 1 and difference.steps == steps):
                return difference
            size = max(size // 2, 1)

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self._emulated, self._real

    def _begin(self) -> None:
        if not self._topics:
            self._refill()
        name, topics = self._topics.pop()
        self._used.append(name)
        for side, known in zip(self._sides, topics, strict=True):
            side.begin(name, known)

    def _refill(self) -> None:
        names = [f"{self._prefix}{next(self._numbers):05}" for _ in range(_TOPICS_AT_ONCE)]
        created = [side.create_topics(names) for side in self._sides]
        self._topics = [(name, [known[name] for known in created]) for name in names]
        if self._used:
            for side in self._sides:
                side.delete_topics(self._used)
            self._used.clear()

    def _answers(self, step: Step) -> tuple[Answer, Answer]:
        """Play a step on both, again where one of them was only not ready yet."""
        emulated, real = self._emulated.play(step), self._real.play(step)
        deadline_s = time.monotonic() + _AGREE_WITHIN_S
        while emulated != real and time.monotonic() < deadline_s:
            if step.api in _READS:
                emulated, real = self._emulated.play(step), self._real.play(step)
            elif is_retriable(real) and not is_retriable(emulated) and NO_ANSWER not in (emulated, real):
                real = self._real.play(step)
            else:
                break
            time.sleep(0.02)
        return emulated, real


def _first_difference(emulated: Any, real: Any) -> str:
    """Return the path to the first field that differs, with both values if they are short."""
    if isinstance(emulated, dict) and isinstance(real, dict):
        for name in emulated:
            if emulated[name] != real.get(name):
                return f".{name}{_first_difference(emulated[name], real.get(name))}"
    if isinstance(emulated, list) and isinstance(real, list) and len(emulated) == len(real):
        for one, other in zip(emulated, real, strict=True):
            if one != other:
                return _first_difference(one, other)
    return _NUMBERED.sub(r"\1", f" {str(emulated)[:40]} / {str(real)[:40]}")
