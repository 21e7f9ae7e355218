"""A client in another language: a program that runs one named case after the other, or several at once.

It reads one JSON object on each line of its standard input (`id`, `case`, and the case's parameters), and writes one on
a line of its standard output for each completed case: `id` with `result`, or with `error` (`name`, `message`).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

_TIMEOUT_S: Final = 120


class CaseError(Exception):
    """The client raised an error; `name` is its own name for it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class LineProgram:
    """A running program that answers each line of JSON with one that has its `id`. It ends with this object."""

    def __init__(self, command: Sequence[str], name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def ask(self, request: Mapping[str, Any]) -> tuple[int, Future[Any]]:
        """Send a request beside others; return its id, and its result to come."""
        number = next(self._numbers)
        over = self._waiting[number] = Future[Any]()
        self.send({"id": number, **request})
        return number, over

    def send(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()

    def result_of(self, answer: Mapping[str, Any]) -> Any:
        """Read an answer; may raise an error, which the request's Future then has."""
        raise NotImplementedError

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            over = self._waiting.pop(answer["id"])
            try:
                over.set_result(self.result_of(answer))
            except Exception as error:
                over.set_exception(error)
        for over in self._waiting.values():
            over.set_exception(RuntimeError(f"{self._name} has ended"))


class CaseProgram(LineProgram):
    """The cases of a client."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command, command[0])

    def start(self, case: str, **inputs: Any) -> Future[Any]:
        """Begin a case beside others."""
        return self.ask({"case": case, **inputs})[1]

    def run(self, case: str, **inputs: Any) -> Any:
        """Run a case to its end and return its result. Raises CaseError."""
        return self.start(case, **inputs).result(_TIMEOUT_S)

    def result_of(self, answer: Mapping[str, Any]) -> Any:
        if "error" in answer:
            raise CaseError(answer["error"]["name"], answer["error"]["message"])
        return answer.get("result")
