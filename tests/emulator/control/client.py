"""A client that knows HTTP and JSON, and nothing of the emulator."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest


class Answer(NamedTuple):
    """A status with what came with it."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def error(self) -> dict[str, Any]:
        """What was wrong."""
        error: dict[str, Any] = self.body["error"]
        return error


class Client:
    """Asks one address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0

    def ask(
        self, method: str, path: str, body: object = None, *, raw: bytes | None = None, headers: object = None
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        sent = dict(headers) if isinstance(headers, Mapping) else {}
        data = raw
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=data, headers=sent)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        is_json = answer.getheader("Content-Type") == "application/json" and method != "HEAD"
        return Answer(answer.status, json.loads(content) if is_json else content, dict(answer.getheaders()))

    def get(self, path: str) -> Any:
        """What a GET answers with 200."""
        return self._done(self.ask("GET", path), 200)

    def post(self, path: str, body: object = None, status: int = 200) -> Any:
        """What a POST answers."""
        return self._done(self.ask("POST", path, body), status)

    def put(self, path: str, body: object) -> Any:
        """What a PUT answers with 200."""
        return self._done(self.ask("PUT", path, body), 200)

    def delete(self, path: str) -> Any:
        """What a DELETE answers with 200."""
        return self._done(self.ask("DELETE", path), 200)

    def refused(self, status: int, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The error that is answered."""
        return self._done(self.ask(method, path, body), status)["error"]  # type: ignore[no-any-return]

    @staticmethod
    def _done(answer: Answer, status: int) -> Any:
        if answer.status != status:
            pytest.fail(f"{answer.status} instead of {status}: {answer.body}")
        return answer.body
