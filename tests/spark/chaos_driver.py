"""Run a driver of the chaos test: one query that is restarted whenever it fails, until the calm phase.

    python -m tests.spark.chaos_driver JOB

It prints `ready` once it has a session, and begins on a line of input. So a standby driver is ready when the old one is
killed.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.faults import Faults
from tests.support.spark_session import start_session

FORMAT = "chaos"
QUERY = "chaos"


@dataclass(frozen=True)
class Job:
    """The settings of all drivers of a run."""

    directory: str
    options: dict[str, str]
    stall_s: float
    session_checkpoint: str | None = None
    """The session's directory of checkpoints, in a directory with the name of the query; None: an option says."""

    @property
    def calm(self) -> Path:
        """The file that orders the calm phase; the driver exits at its end."""
        return Path(self.directory, "calm")

    @property
    def input(self) -> Path:
        return Path(self.directory, "input")

    @property
    def journal(self) -> Path:
        """The file with a line for each query that failed, with the reason."""
        return Path(self.directory, "journal")

    def faults(self) -> Faults:
        return Faults(Path(self.directory, "faults"), stall_s=self.stall_s)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: str) -> Job:
        return cls(**json.loads(Path(path).read_text()))


class Driver:
    """The query in one session."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._chance = random.Random()
        self._spark: SparkSession = start_session("local[3,3]")
        self._spark.dataSource.register(job.faults().format(FORMAT))
        if job.session_checkpoint is not None:
            self._spark.conf.set("spark.sql.streaming.checkpointLocation", job.session_checkpoint)

    def run(self) -> None:
        """Run the query until the calm phase is ordered, and then to the end of the input."""
        while not self._job.calm.exists():
            self._try(at_once=False)
        while not self._try(at_once=True):
            pass

    def _try(self, *, at_once: bool) -> bool:
        try:
            query = self._start(at_once)
            if at_once:
                query.awaitTermination()
            else:
                self._let_run(query)
        except PySparkException as error:
            self._note(error)
            time.sleep(0.3)  # a server may be away
            return False
        return True

    def _start(self, at_once: bool) -> StreamingQuery:
        rows = (
            self._spark.readStream.schema("value string").option("maxFilesPerTrigger", "2").json(str(self._job.input))
        )
        df = rows.selectExpr("value AS key", "value", "value AS id").repartition(self._chance.randint(1, 3))
        writer = df.writeStream.format(FORMAT).options(**self._job.options).queryName(QUERY)
        return (writer.trigger(availableNow=True) if at_once else writer.trigger(processingTime="0 seconds")).start()

    def _let_run(self, query: StreamingQuery) -> None:
        """Run the query until it fails or the calm phase is ordered, even in the middle of a batch."""
        try:
            while not query.awaitTermination(0.2) and not self._job.calm.exists():  # type: ignore[arg-type]  # fractions are taken
                pass
        finally:
            query.stop()

    def _note(self, error: PySparkException) -> None:
        named = re.findall(r"\b((?:\w+\.)*\w+(?:Error|Exception))\b: ", str(error))
        own = [name for name in named if not name.startswith(("py4j", "org.", "java."))]
        line = (own or named or [type(error).__name__])[-1].rpartition(".")[2]
        with os.fdopen(os.open(self._job.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "w") as journal:
            journal.write(f"{line}\n")
        print(error, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> None:
    driver = Driver(Job.load(arguments[0]))
    print("ready", flush=True)
    if sys.stdin.readline():
        driver.run()


if __name__ == "__main__":
    main(sys.argv[1:])
