"""The progress of a run: a line per life."""

from __future__ import annotations

from rich.console import Console

from examples.flights_spark.tally import Tally


class LinePerLife:
    """Prints for each life the number of its tasks, and how it ended."""

    def __init__(self, console: Console, kills: int) -> None:
        self._console = console
        self._kills = kills
        self._printed_kills = 0

    def __call__(self, tally: Tally) -> None:
        if tally.kills == self._printed_kills:
            self._print(f"life {tally.lives}: Spark writes in {_tasks(tally.tasks[-1])} a batch")
            return
        self._printed_kills = tally.kills
        second, moment = tally.killed[-1]
        self._print(f"  killed after {second:.1f} s, {moment} ({tally.kills} of {self._kills})")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
