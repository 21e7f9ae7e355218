"""What the orchestrator tells a worker, and what the worker tells back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.kill_plan import Kill

REFUSED_STATUS = 3
"""Exit status of a worker that could not go on for a reason that its last words tell in one line."""


class Method(StrEnum):
    """How a worker writes to both sides."""

    DUAL_WRITE = "dual write"
    NAIVE = "naive"


@dataclass(frozen=True, slots=True)
class Job:
    """One life of a worker, from start to death or to the end of the events."""

    method: Method
    database_url: str
    bootstrap_servers: str
    topic: str
    transactional_id: str
    event_file: str
    group_size: int
    kill: Kill | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        fields["method"] = Method(fields["method"])
        if fields["kill"] is not None:
            fields["kill"]["point"] = PausePoint(fields["kill"]["point"])
            fields["kill"] = Kill(**fields["kill"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's message: it has started, or it has written another group. `rows` are in the table by now.

    `recovered` is set once per life, at its start: what became of what the predecessor left.
    """

    rows: int
    recovered: Outcome | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        if fields["recovered"] is not None:
            fields["recovered"] = Outcome(fields["recovered"])
        return cls(**fields)
