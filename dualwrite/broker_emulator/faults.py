"""Declarative faults: which requests, how often, and what happens to them instead of the ordinary answer.

Faults may be added, watched and removed from any thread. A broker without faults pays one attribute read per request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from dualwrite.broker_emulator.api.registry import Call


@dataclass(frozen=True, slots=True)
class Error:
    """Answer with `code` (a number will do) everywhere the response has room for it; the request is not applied."""

    code: ErrorCode | int


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait `duration_ms` (of the event loop, not of the broker's clock), then serve the request as usual."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Do not apply the request and never answer on this connection again; it stays open, as on a lost link."""


@dataclass(frozen=True, slots=True)
class DropReply:
    """Apply the request, close the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class CloseBefore:
    """Close the connection instead of applying the request."""


@dataclass(frozen=True, slots=True)
class CloseAfter:
    """Apply the request, answer it, then close the connection."""


Action = Error | Delay | DropRequest | DropReply | CloseBefore | CloseAfter


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which requests are meant, and what happens to them. A selector that is None accepts everything.

    The first `skip` matching requests pass unharmed; after them `count` are hit (every one, when None).
    `action` None only observes: matching requests are counted and served as usual, however many there are.
    """

    action: Action | None = None
    api: str | int | None = None
    """An API key, or its name in the case of Kafka's protocol guide ("EndTxn") or of this package ("end_txn")."""
    client_id: str | None = None
    transactional_id: str | None = None
    topic: str | None = None
    node: int | None = None
    predicate: Callable[[Any], bool] | None = None
    """Sees the decoded request (kio's type for its version); runs in the emulator's thread."""
    count: int | None = 1
    skip: int = 0

    def accepts(self, call: Call) -> bool:
        """Whether `call` is one of the requests that this fault means."""
        return (
            (self.api is None or self.api == call.api.key or _folded(self.api) == _folded(call.api.schema_name))
            and (self.client_id is None or self.client_id == call.client_id)
            and (self.node is None or self.node == call.node.node_id)
            and (self.transactional_id is None or self.transactional_id in _transactional_ids(call.request))
            and (self.topic is None or self.topic in _topics(call))
            and (self.predicate is None or self.predicate(call.request))
        )


class FaultHandle:
    """A fault in place."""

    def __init__(self, faults: Faults, fault: Fault) -> None:
        self.fault = fault
        self._faults = faults
        self._changed = threading.Condition()
        self._seen = 0
        self._hits = 0

    @property
    def hits(self) -> int:
        """How many requests this fault has hit (or, without an action, observed)."""
        return self._hits

    def wait(self, hits: int = 1, timeout_s: float = 10.0) -> None:
        """Block until `hits` requests were hit. Raises TimeoutError after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while self._hits < hits:
                if not self._changed.wait(deadline_s - time.monotonic()) and time.monotonic() >= deadline_s:
                    raise TimeoutError(f"{self._hits} of {hits} hits after {timeout_s} s: {self.fault}")

    def remove(self) -> None:
        """Take the fault away; harmless when it is gone already."""
        self._faults.remove(self)

    def take(self, call: Call) -> bool:
        """Whether `call` is hit, counting it. Runs in the emulator's loop."""
        if not self.fault.accepts(call):
            return False
        with self._changed:
            self._seen += 1
            if self._seen <= self.fault.skip or self.is_spent:
                return False
            self._hits += 1
            self._changed.notify_all()
        return True

    @property
    def is_spent(self) -> bool:
        """Whether `count` requests have been hit. A fault that only observes is never used up."""
        fault = self.fault
        return fault.action is not None and fault.count is not None and self._hits >= fault.count


class Faults:
    """The faults of one emulator, in the order in which they were added; the first that hits decides."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: tuple[FaultHandle, ...] = ()

    @property
    def active(self) -> bool:
        """Whether any fault is in place."""
        return bool(self._handles)

    def add(self, fault: Fault) -> FaultHandle:
        """Put `fault` in place for requests that arrive from now on."""
        handle = FaultHandle(self, fault)
        with self._lock:
            self._handles = (*self._handles, handle)
        return handle

    def remove(self, handle: FaultHandle) -> None:
        """Take `handle`'s fault away."""
        with self._lock:
            self._handles = tuple(other for other in self._handles if other is not handle)

    def clear(self) -> None:
        """Take every fault away."""
        with self._lock:
            self._handles = ()

    def take(self, call: Call) -> Action | None:
        """What happens to `call`, counting it on every observing fault and on the first that acts on it."""
        for handle in self._handles:
            if handle.take(call):
                if handle.is_spent:
                    self.remove(handle)
                if handle.fault.action is not None:
                    return handle.fault.action
        return None


def _folded(name: str | int) -> str:
    return str(name).replace("_", "").lower()


def _transactional_ids(request: Any) -> set[str]:
    """The transactional ids that a request of any API names."""
    own = {getattr(request, name, None) for name in ("transactional_id", "v3_and_below_transactional_id", "key")}
    listed = {transaction.transactional_id for transaction in getattr(request, "transactions", ())}
    return {*own, *listed, *getattr(request, "transactional_ids", ()), *getattr(request, "coordinator_keys", ())} - {
        None
    }


def _topics(call: Call) -> set[str]:
    """The topics that a request of any API names, by name or by id."""
    names: set[str] = set()
    for attribute in ("topics", "topic_data", "v3_and_below_topics", "topic_names"):
        for topic in getattr(call.request, attribute, None) or ():
            names.add(topic if isinstance(topic, str) else _topic_name(call, topic))
    return names


def _topic_name(call: Call, topic: Any) -> str:
    for attribute in ("name", "topic"):
        name = getattr(topic, attribute, None)
        if name is not None:
            return str(name)
    known = call.cluster.topic_by_id(topic.topic_id)
    return known.name if known else ""
