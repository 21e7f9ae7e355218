"""Frames of clients, as `record.py` has kept them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

KEPT: Final = Path(__file__).with_name("captures.txt")


@dataclass(frozen=True, slots=True)
class Capture:
    """The frames of one client, sizes included."""

    client: str
    frames: tuple[bytes, ...]


@cache
def kept_captures(path: Path = KEPT) -> tuple[Capture, ...]:
    """Return the captures in the file: a line for each client, its name and its frames, compressed."""
    captures = []
    for line in path.read_text().splitlines():
        client, _, packed = line.partition(" ")
        captures.append(Capture(client, tuple(_frames(zlib.decompress(base64.b85decode(packed))))))
    return tuple(captures)


def keep(captures: Mapping[str, Sequence[bytes]], path: Path = KEPT) -> None:
    """Write the file."""
    lines = [
        f"{client} {base64.b85encode(zlib.compress(b''.join(frames), 9)).decode()}\n"
        for client, frames in sorted(captures.items())
    ]
    path.write_text("".join(lines))


def _frames(data: bytes) -> list[bytes]:
    frames, position = [], 0
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4])
        frames.append(data[position:end])
        position = end
    return frames
