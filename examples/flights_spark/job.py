"""The parameters of one life of the application."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from examples.flights_spark.methods import Method

SINK_ID = "flights"


@dataclass(frozen=True, slots=True)
class Job:
    """The parameters; only `tasks`, the number of partitions in which Spark writes, differs between lives."""

    database_url: str
    bootstrap_servers: str
    input_directory: str
    checkpoints: str
    tasks: int

    def checkpoint_of(self, method: Method) -> str:
        return str(Path(self.checkpoints) / method.name.lower())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
