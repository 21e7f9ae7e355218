"""An older checkpoint of a query put in the place of the current one, as a restored backup, and taken away again."""

from __future__ import annotations

import shutil
from pathlib import Path


class Checkpoints:
    """The checkpoint of a query that is not running, and a backup of it."""

    def __init__(self, current: Path) -> None:
        self._current = current
        self._backup = current.with_name(f"{current.name}-backup")
        self._aside = current.with_name(f"{current.name}-aside")
        self._decided_then: int | None = None

    def back_up(self, decided: int) -> None:
        """Copy the checkpoint, when so many batches are decided."""
        shutil.rmtree(self._backup, ignore_errors=True)
        if self._current.exists():
            shutil.copytree(self._current, self._backup)
            self._decided_then = decided

    def is_old(self, decided: int) -> bool:
        """Return whether a query that has the backup would contradict decisions.

        The batches that the backup has planned were decided as planned; the batch behind them is planned anew.
        """
        return self._decided_then is not None and decided >= self._decided_then + 3

    def restore(self) -> None:
        """Put the backup in the place of the checkpoint, which is kept."""
        self._current.rename(self._aside)
        shutil.copytree(self._backup, self._current)

    def undo(self) -> None:
        """Put back the checkpoint that `restore` has kept."""
        shutil.rmtree(self._current)
        self._aside.rename(self._current)
