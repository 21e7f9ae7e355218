"""Cases: the frames of one connection, made from a seed and a number, or read from a file to be replayed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final, Self

from tests.emulator.hostile.requests import LENGTHS, sized
from tests.fuzz.captures import Capture
from tests.fuzz.messages import random_frame

_DAMAGE: Final = 0.4
_CAPTURED: Final = 0.4


class Entrance(StrEnum):
    """How far the client has come when it sends the frames of its case."""

    PLAIN = "a listener without a login"
    BEFORE_LOGIN = "a listener with a login, before it"
    IN_LOGIN = "between the handshake and the login"
    LOGGED_IN = "after the login"


@dataclass(frozen=True, slots=True)
class Case:
    """Frames for one connection."""

    seed: int
    number: int
    entrance: Entrance
    frames: tuple[bytes, ...]

    def to_json(self) -> dict[str, object]:
        frames = [content.hex() for content in self.frames]
        return {"seed": self.seed, "number": self.number, "entrance": self.entrance.value, "frames": frames}

    @classmethod
    def from_json(cls, value: dict[str, object]) -> Self:
        frames = value["frames"]
        assert isinstance(frames, list)
        numbers = (int(str(value["seed"])), int(str(value["number"])))
        return cls(*numbers, Entrance(str(value["entrance"])), tuple(bytes.fromhex(content) for content in frames))


def write_cases(path: Path, what: str, cases: Sequence[Case]) -> None:
    """Keep cases, with the failure that they have shown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"what": what, "cases": [case.to_json() for case in cases]}, indent=1) + "\n")


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file that `write_cases` wrote."""
    return [Case.from_json(value) for value in json.loads(path.read_text())["cases"]]


def make_case(seed: int, number: int, captures: Sequence[Capture]) -> Case:
    """Return the case of this number, the same each time."""
    random = Random(f"{seed}:{number}")
    entrance = random.choice(tuple(Entrance))
    if captures and random.random() < _CAPTURED:
        frames = _of_a_client(random, random.choice(captures))
    else:
        frames = [random_frame(random) for _ in range(random.randint(1, 4))]
    return Case(seed, number, entrance, tuple(damaged(random, f) if random.random() < _DAMAGE else f for f in frames))


def _of_a_client(random: Random, capture: Capture) -> list[bytes]:
    """Return some frames of a client, in its order or not."""
    start = random.randrange(len(capture.frames))
    chosen = list(capture.frames[start : start + random.randint(1, 8)])
    if random.random() < 0.3:
        random.shuffle(chosen)
    if random.random() < 0.2:
        chosen *= 2
    return chosen


def damaged(random: Random, content: bytes) -> bytes:
    """Return a damaged frame, mostly with a size that fits."""
    content = content[4:]
    for _ in range(random.randint(1, 4)):
        place = random.randint(0, min(len(content), 4_000))
        inserted = random.choice((random.choice(LENGTHS), random.randbytes(random.randint(1, 4))))
        replaced = random.choice((0, 1, len(inserted), 8))
        content = content[:place] + inserted + content[place + replaced :]
    if random.random() < 0.05:
        return content[: random.randint(0, 40)]
    return sized(content)
