"""The cost so far of a Postgres on this machine: CPU time and bytes of WAL."""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa


class ServerCost:
    """Reads the counters of the server that `engine` connects to."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        with engine.connect() as connection:
            data = Path(str(connection.scalar(sa.text("SHOW data_directory"))))
        self._postmaster = int((data / "postmaster.pid").read_text().splitlines()[0])

    def cpu_s(self) -> float:
        """Return the CPU time of the server, with its connections, also of those that are closed."""
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text().split()
        ticks = sum(_ticks(self._postmaster)) + sum(sum(_ticks(int(child))[:2]) for child in children)
        return ticks / os.sysconf("SC_CLK_TCK")

    def wal_bytes(self) -> int:
        """Return the position of the end of the WAL."""
        with self._engine.connect() as connection:
            return int(connection.scalar(sa.text("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")) or 0)


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process so far."""
    return sum(_ticks(pid)[:2]) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> list[int]:
    """Return the CPU time of a process, in user and system mode, and that of its children that have ended."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]]
    except FileNotFoundError:
        return [0]  # its parent has it by now, which is counted at the next time
