"""The command `python -m dualwrite.broker_emulator` in a forked process, for tests that kill it again and again."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from dualwrite.broker_emulator.process.command_line import main
from tests.support.forked_processes import processes


def start_broker(arguments: list[str], log: Path) -> tuple[ForkServerProcess, str]:
    """Return its process and its first address; append its log to `log`."""
    context = processes()
    listen, tell = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(tell, arguments, log), daemon=True)
    process.start()
    tell.close()
    with open(listen.fileno(), closefd=False) as written:
        address = written.readline().strip()
    listen.close()
    return process, address


def end_broker(process: ForkServerProcess, number: signal.Signals) -> int:
    """Send a signal and wait for the end: return the exit status, below zero if the signal was the end."""
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(30)
    assert process.exitcode is not None, f"it does not end by {number.name}"
    return process.exitcode


def _serve(tell: Connection, arguments: list[str], log: Path) -> None:
    assert sys.__stdout__ is not None
    assert sys.__stderr__ is not None
    os.dup2(tell.fileno(), sys.__stdout__.fileno())
    with log.open("a") as lines:
        os.dup2(lines.fileno(), sys.__stderr__.fileno())
    tell.close()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.exit(main(arguments))
