"""Write the input for Spark's file source: files of JSON lines, in the order of their modification times."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from examples.flights.events import Event

SCHEMA: Final = "number BIGINT, tailnum STRING, event STRING"
_FIRST_MTIME_S: Final = 1_000_000_000


def write_input_files(events: Sequence[Event], directory: Path, *, rows_per_file: int) -> int:
    """Write the files and return their number. Spark reads the oldest first, so their times are one second apart."""
    directory.mkdir()
    starts = range(0, len(events), rows_per_file)
    for number, start in enumerate(starts):
        path = directory / f"flights-{number:05}.jsonl"
        lines = map(_line, events[start : start + rows_per_file])
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.utime(path, (_FIRST_MTIME_S + number, _FIRST_MTIME_S + number))
    return len(starts)


def _line(event: Event) -> str:
    return json.dumps({"number": event.number, "tailnum": event.key, "event": event.value})
