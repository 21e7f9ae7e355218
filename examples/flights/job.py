"""The messages between the demo and its workers: jobs and reports."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self

from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.kill_plan import Kill

REFUSED_STATUS = 3
"""Exit status of a worker that could not continue, for the reason in the last line of its log."""


class Method(StrEnum):
    """How a worker writes to both sides."""

    DUAL_WRITE = "dual write"
    NAIVE = "naive"


@dataclass(frozen=True, slots=True)
class Job:
    """One life of a worker, from its start until it is killed or all events are written."""

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
    """A worker's message after its start and after each group. `rows` is the number of rows in the table by then.

    `recovered` is set once per life, in the first message: the outcome of the predecessor's open transaction.
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
