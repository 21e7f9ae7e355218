"""A database and a broker that are killed by SIGKILL and started again on what they had written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from dualwrite.testing.postgres import PostgresServer

DEADLINE_S = 60.0


class KillablePostgres:
    """A server that `PostgresServer` has started on this machine."""

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.url
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            self._data = Path(str(connection.scalar(sa.text("SHOW data_directory"))))
        process = Path("/proc") / str(self._pid())
        self._command = (process / "cmdline").read_bytes().split(b"\0")[:-1]
        self._directory = (process / "cwd").readlink()
        self._user = process.stat().st_uid
        self._restarted: subprocess.Popen[bytes] | None = None

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def allow_connections(self, number: int) -> None:
        """So many at a time, from now on."""
        self._command += [b"-c", f"max_connections={number}".encode()]
        self.kill()
        self.start_again()

    def kill(self) -> None:
        os.kill(self._pid(), signal.SIGKILL)
        if self._restarted is not None:
            self._restarted.wait()

    def start_again(self) -> None:
        """It refuses for as long as processes of the killed one are alive, which notice soon that they are alone."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            self._restarted = subprocess.Popen(
                self._command,
                cwd=self._directory,
                user=self._user if os.geteuid() == 0 else None,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while self._restarted.poll() is None:
                if self._answers():
                    return
                assert time.monotonic() < deadline_s, "Postgres does not come back"
                time.sleep(0.05)

    def _answers(self) -> bool:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with suppress(sa.exc.OperationalError), engine.connect():
            return True
        return False

    def stop(self) -> None:
        """What was started here; `PostgresServer` sees to the rest."""
        if self._restarted is not None and self._restarted.poll() is None:
            self._restarted.send_signal(signal.SIGINT)
            self._restarted.wait(DEADLINE_S)


class KillableEmulator:
    """The emulator in a process of its own, on disk, always at the same address."""

    def __init__(self, directory: Path, topic: str, partitions: int) -> None:
        self._directory = directory
        self._topic = f"{topic}:{partitions}"
        self._process = self._start("127.0.0.1:0")
        assert self._process.stdout is not None
        self.bootstrap_servers = self._process.stdout.readline().strip()

    def _start(self, address: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "dualwrite.broker_emulator", "--listen", address),
                *("--data-dir", str(self._directory), "--topic", self._topic),
            ],
            stdout=subprocess.PIPE,
            stderr=(self._directory.parent / "emulator.log").open("a"),
            text=True,
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        self._process = self._start(self.bootstrap_servers)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.bootstrap_servers, "the emulator does not come back"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
