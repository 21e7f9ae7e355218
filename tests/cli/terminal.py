"""A command that runs in a terminal until Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Interrupted:
    """How a command ended that Ctrl-C was pressed for."""

    code: int
    err: str


class InTerminal:
    """A command of `dualwrite` whose output is a terminal of 200 columns."""

    def __init__(self, *arguments: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job
        self._terminal, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dualwrite", *map(str, arguments)],
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
        )
        os.close(theirs)
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupt()

    def read_until(self, is_shown: Callable[[str], bool]) -> None:
        """Read until the text that was shown since the last call, without its colours, fulfils the condition."""
        shown = b""
        while not is_shown(_STYLE.sub("", shown.decode(errors="ignore"))):
            shown += os.read(self._terminal, 65_536)

    def interrupt(self) -> Interrupted:
        """Press Ctrl-C, and return how the command ended."""
        self._process.send_signal(signal.SIGINT)
        if self._reader is None:
            # keep reading like a terminal: the view blocks on output that is not read
            self._reader = threading.Thread(target=self._read_to_the_end, daemon=True)
            self._reader.start()
        _, errors = self._process.communicate(timeout=60)
        return Interrupted(self._process.returncode, errors)

    def _read_to_the_end(self) -> None:
        with suppress(OSError):  # how a pseudo terminal says that its other side is closed
            while os.read(self._terminal, 65_536):
                pass
        os.close(self._terminal)
