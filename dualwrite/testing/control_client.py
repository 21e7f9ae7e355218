"""A client of a broker emulator in another process or container, over its control port (docs/emulator-control.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

_TIMEOUT_S: Final = 90.0


class ControlClientError(RuntimeError):
    """The broker refused a request, or cannot be reached; `code` is the broker's kind of error, or empty."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class RemoteRecord:
    """A record as a consumer gets it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ControlClient:
    """A test's control of a broker that it does not run itself: records, faults, held points, time, reset."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send any request of the control port and return its JSON. Raises ControlClientError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        sent = Request(self.url + path, data=data, method=method, headers=headers)
        try:
            with urlopen(sent, timeout=_TIMEOUT_S) as response:
                return json.load(response)
        except HTTPError as refused:
            error = json.load(refused)["error"]
            raise ControlClientError(error["message"], error["code"]) from None
        except (URLError, OSError, ValueError) as error:
            raise ControlClientError(f"the control port {self.url} cannot be reached: {error}") from error

    def records(self, topic: str, partition: int | None = None, *, read_committed: bool = True) -> list[RemoteRecord]:
        """Return the records of a topic, or of one partition, as a consumer gets them."""
        query: dict[str, object] = {"encoding": "base64", "limit": 10_000}
        query["isolation"] = "read_committed" if read_committed else "read_uncommitted"
        if partition is not None:
            query["partition"] = partition
        answer = self.request("GET", f"/v1/topics/{quote(topic, safe='')}/records?{urlencode(query)}")
        return [_record(each) for each in answer["records"]]

    def add_fault(self, fault: Mapping[str, Any]) -> int:
        """Put a fault in place, such as {"api": "EndTxn", "action": {"type": "DropReply"}}; return its id."""
        fault_id: int = self.request("POST", "/v1/faults", dict(fault))["fault_id"]
        return fault_id

    def wait_for_fault(self, fault_id: int, *, hits: int = 1, timeout_ms: int = 10_000) -> None:
        """Wait until the fault has hit this many requests. Raises ControlClientError (not-reached)."""
        self.request("GET", f"/v1/faults/{fault_id}/wait?hits={hits}&timeout_ms={timeout_ms}")

    def release_fault(self, fault_id: int) -> None:
        """Release everything that the fault holds now."""
        self.request("POST", f"/v1/faults/{fault_id}/release")

    def advance_clock(self, duration_ms: int) -> None:
        """Advance the broker's virtual clock."""
        self.request("POST", "/v1/clock/advance", {"duration_ms": duration_ms})

    def reset(self) -> None:
        """Make the broker as new for the next test; topics and connections stay."""
        self.request("POST", "/v1/reset")


def _record(read: Mapping[str, Any]) -> RemoteRecord:
    headers = tuple((each["key"], _bytes(each["value"])) for each in read["headers"])
    key, value = _bytes(read["key"]), _bytes(read["value"])
    return RemoteRecord(read["partition"], read["offset"], read["timestamp_ms"], key, value, headers)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
