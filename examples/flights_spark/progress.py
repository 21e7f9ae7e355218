"""How a run shows that it lives: a line per life."""

from __future__ import annotations

from rich.console import Console

from examples.flights_spark.tally import Tally


class LinePerLife:
    """Says of each life in how many tasks it writes, and how it ended."""

    def __init__(self, console: Console, kills: int) -> None:
        self._console = console
        self._kills = kills
        self._said_kills = 0

    def __call__(self, tally: Tally) -> None:
        if tally.kills == self._said_kills:
            self._say(f"life {tally.lives}: Spark writes in {_tasks(tally.tasks[-1])} a batch")
            return
        self._said_kills = tally.kills
        second, moment = tally.killed[-1]
        self._say(f"  killed after {second:.1f} s, {moment} ({tally.kills} of {self._kills})")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
