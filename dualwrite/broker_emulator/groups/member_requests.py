"""Requests of the members of classic groups, the responses to them, and waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.group import Group, Protocol

Response = TypeVar("Response")


class JoinRequest(NamedTuple):
    """A JoinGroup request, without the group id."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    new_member_id: str
    """The id for a member without one."""
    requires_known_member_id: bool
    """Whether a new member first gets an id with MEMBER_ID_REQUIRED and must join again (KIP-394, v4+)."""
    can_skip_assignment: bool
    """Whether a leader knows SkipAssignment, by which it must not assign (KIP-814, v9+)."""

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(protocol.name for protocol in self.protocols)


class SyncRequest(NamedTuple):
    """A SyncGroup request; the assignments come from the leader only."""

    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


class LeavingMember(NamedTuple):
    """A leaving member, by member id; only by instance if an administrator removes a static member."""

    member_id: str
    group_instance_id: str | None


# --- responses -------------------------------------------------------------------------------------------------------


class JoinedMember(NamedTuple):
    """A member in the leader's response."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """Response to JoinGroup."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """Response to SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# --- decisions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    """The next state of a classic group, and responses to its waiting requests.

    `joined` and `synced` are the responses, by member id. With `stores_group`, the group's record must be written
    first; if that fails, `if_refused` turns the error into the decision to carry out instead.
    """

    group: Group
    joined: Mapping[str, JoinResponse] = field(default_factory=dict)
    synced: Mapping[str, SyncResponse] = field(default_factory=dict)
    stores_group: bool = False
    if_refused: Callable[[ErrorCode], GroupDecision] | None = None


class JoinDecision(NamedTuple):
    """A decision about a JoinGroup: the response, or None if the request waits under the member id `waits_as`.

    `decision` may already contain the response for a waiting request.
    """

    decision: GroupDecision
    response: JoinResponse | None = None
    waits_as: str = ""


class SyncDecision(NamedTuple):
    """A decision about a SyncGroup: the response, or None if the request waits under its member id.

    `decision` may already contain the response for a waiting request.
    """

    decision: GroupDecision
    response: SyncResponse | None = None


# --- requests that wait ----------------------------------------------------------------------------------------------


class SupersededError(Exception):
    """A newer request of the same member replaced a waiting one, which gets no response."""


class WaitingRequests(Generic[Response]):
    """At most one waiting request of each member of each group."""

    def __init__(self) -> None:
        self._futures: dict[tuple[str, str], asyncio.Future[Response]] = {}

    def add(self, group_id: str, member_id: str) -> asyncio.Future[Response]:
        """Return a future for the response to a member; an earlier future of the member raises SupersededError."""
        superseded = self._futures.get((group_id, member_id))
        if superseded is not None and not superseded.done():
            superseded.set_exception(SupersededError(f"a newer request of member {member_id!r} of group {group_id!r}"))
        future = self._futures[(group_id, member_id)] = asyncio.get_running_loop().create_future()
        return future

    def take(self, group_id: str, responses: Mapping[str, Response]) -> list[tuple[asyncio.Future[Response], Response]]:
        """Remove the futures of these members, and return them with the responses."""
        futures = (
            (self._futures.pop((group_id, member_id), None), response) for member_id, response in responses.items()
        )
        return [(future, response) for future, response in futures if future is not None]

    def take_all(self) -> list[tuple[str, asyncio.Future[Response]]]:
        """Remove and return all futures, with their member ids."""
        waiting = [(member_id, future) for (_, member_id), future in self._futures.items()]
        self._futures.clear()
        return waiting


def send_responses(responses: list[tuple[asyncio.Future[Response], Response]]) -> None:
    """Set each response as the result of its future, unless the future is done (cancelled or superseded)."""
    for future, response in responses:
        if not future.done():
            future.set_result(response)
