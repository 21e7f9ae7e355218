"""An HTTP client that knows JSON, and nothing of the emulator."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest


class Response(NamedTuple):
    """A status, with the body and the headers."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body."""
        error: dict[str, Any] = self.body["error"]
        return error


class Client:
    """Sends requests to one address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 0

    def ask(
        self, method: str, path: str, body: object = None, *, raw: bytes | None = None, headers: object = None
    ) -> Response:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        sent = dict(headers) if isinstance(headers, Mapping) else {}
        data = raw
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=data, headers=sent)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        is_json = response.getheader("Content-Type") == "application/json" and method != "HEAD"
        return Response(response.status, json.loads(content) if is_json else content, dict(response.getheaders()))

    def get(self, path: str) -> Any:
        """GET, expect 200, and return the body."""
        return self._done(self.ask("GET", path), 200)

    def post(self, path: str, body: object = None, status: int = 200) -> Any:
        """POST, and return the body."""
        return self._done(self.ask("POST", path, body), status)

    def put(self, path: str, body: object) -> Any:
        """PUT, expect 200, and return the body."""
        return self._done(self.ask("PUT", path, body), 200)

    def delete(self, path: str) -> Any:
        """DELETE, expect 200, and return the body."""
        return self._done(self.ask("DELETE", path), 200)

    def refused(self, status: int, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Send a request, expect this error status, and return the error."""
        return self._done(self.ask(method, path, body), status)["error"]  # type: ignore[no-any-return]

    @staticmethod
    def _done(response: Response, status: int) -> Any:
        if response.status != status:
            pytest.fail(f"{response.status} instead of {status}: {response.body}")
        return response.body
