"""A client in another language: a program that runs one named case after the other, or several at once.

It reads one JSON object on each line of its standard input (`id`, `case`, and the case's parameters), and writes one on
a line of its standard output for each completed case: `id` with `result`, or with `error` (`name`, `message`).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

_TIMEOUT_S: Final = 120


class CaseError(Exception):
    """The client raised an error; `name` is its own name for it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class CaseProgram:
    """The program, running. It ends with this object."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=command[0], daemon=True)
        self._reader.start()

    def start(self, case: str, **inputs: Any) -> Future[Any]:
        """Begin a case beside others."""
        number = next(self._numbers)
        over: Future[Any] = Future()
        self._waiting[number] = over
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"id": number, "case": case, **inputs}) + "\n")
            self._process.stdin.flush()
        return over

    def run(self, case: str, **inputs: Any) -> Any:
        """Run a case to its end and return its result. Raises CaseError."""
        return self.start(case, **inputs).result(_TIMEOUT_S)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            over = self._waiting.pop(answer["id"])
            if "error" in answer:
                over.set_exception(CaseError(answer["error"]["name"], answer["error"]["message"]))
            else:
                over.set_result(answer.get("result"))
        for over in self._waiting.values():
            over.set_exception(RuntimeError("the program has ended"))
