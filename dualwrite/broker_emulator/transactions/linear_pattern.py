"""Regular expressions that match in time linear in the text (ListTransactions v2, KIP-1152).

Kafka matches with RE2J, which never backtracks. Python's engine does: a pattern such as `(a+)+b` would block it, and
with it the whole broker, for years. So patterns are compiled to a state machine here, whose states are built lazily
as they are reached. What RE2 refuses (look-around, back references, repetitions beyond 1000) is refused here as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

MAX_REPETITIONS = 1000
_MAX_INSTRUCTIONS = 5000
_MAX_DEPTH = 50
_MAX_KNOWN_STATES = 2000

_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|[^0-9])")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPETITION = re.compile(r"\{(\d{1,4})(?:(,)(\d{0,4}))?\}")
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>)?")


class PatternError(ValueError):
    """Kafka would refuse the pattern (128 INVALID_REGULAR_EXPRESSION)."""


class _Instruction(NamedTuple):
    """One step of the state machine: goes to `targets`, after consuming a character if `accepts` is given."""

    targets: tuple[int, ...]
    accepts: Callable[[str], object] | None = None
    only_at: str = ""
    """"^" or "$", for a step that can be taken at that place only."""


class LinearPattern:
    """A compiled pattern. Raises PatternError if Kafka would refuse it."""

    def __init__(self, pattern: str) -> None:
        ignores_case = pattern.startswith("(?i)")
        # RE2's \w, \d and \s are ASCII only; its case folding is not, and re.ASCII would restrict both
        compiler = _Compiler(pattern, 4 if ignores_case else 0, re.IGNORECASE if ignores_case else re.ASCII)
        self._program, self._start = compiler.compile()
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def fullmatch(self, text: str) -> bool:
        """Return whether the whole of `text` matches."""
        if not text:
            return 0 in self._reachable((self._start,), "^$")
        states = self._reachable((self._start,), "^")
        for character in text[:-1]:
            states = self._step(states, character)
            if not states:
                return False
        return 0 in self._reachable(self._read(states, text[-1]), "$")

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        following = self._known.get((states, character))
        if following is None:
            if len(self._known) >= _MAX_KNOWN_STATES:
                self._known.clear()
            following = self._known[states, character] = self._reachable(self._read(states, character), "")
        return following

    def _read(self, states: Iterable[int], character: str) -> list[int]:
        program = self._program
        steps = (program[state] for state in states)
        return [step.targets[0] for step in steps if step.accepts is not None and step.accepts(character)]

    def _reachable(self, states: Iterable[int], place: str) -> frozenset[int]:
        """Return the states reachable without consuming a character; 0 is the end of the pattern."""
        found: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            step = self._program[state]
            if state in found or (step.only_at and step.only_at not in place):
                continue
            found.add(state)
            if step.accepts is None:
                waiting.extend(step.targets)
        return frozenset(found)


_Build = Callable[[int], int]
"""Emits the instructions of one part of a pattern, given the instruction that follows it; returns the part's first."""


class _Compiler:
    """Parses a pattern from left to right, and emits its state machine from right to left."""

    def __init__(self, pattern: str, position: int, flags: re.RegexFlag) -> None:
        self._pattern = pattern
        self._position = position
        self._flags = flags
        self._depth = 0
        self._program: list[_Instruction] = [_Instruction(())]

    def compile(self) -> tuple[list[_Instruction], int]:
        build = self._alternatives()
        if self._position < len(self._pattern):
            raise PatternError(f"unmatched ) at {self._position}")
        return self._program, build(0)

    def _emit(self, instruction: _Instruction) -> int:
        if len(self._program) >= _MAX_INSTRUCTIONS:
            raise PatternError("the pattern is too large")
        self._program.append(instruction)
        return len(self._program) - 1

    def _alternatives(self) -> _Build:
        alternatives = [self._sequence()]
        while self._takes("|"):
            alternatives.append(self._sequence())
        if len(alternatives) == 1:
            return alternatives[0]
        return lambda after: self._emit(_Instruction(tuple(build(after) for build in alternatives)))

    def _sequence(self) -> _Build:
        parts: list[_Build] = []
        while self._position < len(self._pattern) and self._pattern[self._position] not in "|)":
            parts.append(self._repeated(self._atom()))

        def build(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return build

    def _repeated(self, part: _Build) -> _Build:
        if self._takes("*"):
            least, most = 0, None
        elif self._takes("+"):
            least, most = 1, None
        elif self._takes("?"):
            least, most = 0, 1
        else:
            counted = _REPETITION.match(self._pattern, self._position)
            if counted is None:
                return part
            self._position = counted.end()
            least, most = _bounds(counted)
        self._takes("?")  # a lazy quantifier makes no difference to a full match
        if self._position < len(self._pattern) and self._pattern[self._position] in "*+?":
            raise PatternError(f"repetition of a repetition at {self._position}")
        return lambda after: self._build_repetition(part, least, most, after)

    def _build_repetition(self, part: _Build, least: int, most: int | None, after: int) -> int:
        begin = after
        if most is None:
            begin = self._emit(_Instruction(()))
            self._program[begin] = _Instruction((part(begin), after))
        else:
            for _ in range(most - least):
                begin = self._emit(_Instruction((part(begin), after)))
        for _ in range(least):
            begin = part(begin)
        return begin

    def _atom(self) -> _Build:
        character = self._pattern[self._position]
        if character == "(":
            return self._group()
        if character in "^$":
            self._position += 1
            return lambda after: self._emit(_Instruction((after,), only_at=character))
        accepts = self._character_test(character)
        return lambda after: self._emit(_Instruction((after,), accepts))

    def _group(self) -> _Build:
        opened = _GROUP.match(self._pattern, self._position)
        assert opened is not None
        self._position = opened.end()
        self._depth += 1
        if self._depth > _MAX_DEPTH or self._pattern.startswith("?", self._position):
            raise PatternError(f"unsupported group at {opened.start()}")
        build = self._alternatives()
        if not self._takes(")"):
            raise PatternError(f"missing ) of the group at {opened.start()}")
        self._depth -= 1
        return build

    def _character_test(self, character: str) -> Callable[[str], object]:
        """Return a test for one character; Python's engine does it, as a single character needs no backtracking."""
        if character in "*+?":
            raise PatternError(f"nothing to repeat at {self._position}")
        shape = {"[": _CLASS, "\\": _ESCAPE}.get(character)
        text = character
        if shape is not None:
            found = shape.match(self._pattern, self._position)
            if found is None:
                raise PatternError(f"an unfinished or unknown {character} at {self._position}")
            text = found.group()
        self._position += len(text)
        try:
            return re.compile(text if shape is not None or character == "." else re.escape(text), self._flags).fullmatch
        except (re.error, OverflowError) as error:
            raise PatternError(str(error)) from error

    def _takes(self, character: str) -> bool:
        taken = self._pattern.startswith(character, self._position)
        self._position += taken
        return taken


def _bounds(counted: re.Match[str]) -> tuple[int, int | None]:
    least = int(counted[1])
    most = least if counted[2] is None else int(counted[3]) if counted[3] else None
    if max(least, most or 0) > MAX_REPETITIONS or (most is not None and most < least):
        raise PatternError(f"repetitions {counted.group()}")
    return least, most
