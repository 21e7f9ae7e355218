"""What members are told: answers to JoinGroup and SyncGroup, and what a decision about a group consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.group import Group, Protocol


class JoinRequest(NamedTuple):
    """A JoinGroup request, apart from who it comes to."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    new_member_id: str
    """The id to give it if it has none yet."""
    must_know_its_id: bool
    """Whether a newcomer is sent away with an id first (KIP-394, v4+)."""
    can_skip_assignment: bool
    """Whether a leader understands that it must not assign (v9+)."""

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(protocol.name for protocol in self.protocols)


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """Answer to a JoinGroup."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """Answer to a SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of a group.

    `joined` and `synced` answer requests that wait, by member id. With `stores_group` the group's record is to be
    written first; if that fails, the decision is what `if_refused` makes of the error instead.
    """

    group: Group
    joined: Mapping[str, JoinAnswer] = field(default_factory=dict)
    synced: Mapping[str, SyncAnswer] = field(default_factory=dict)
    stores_group: bool = False
    if_refused: Callable[[ErrorCode], Decision] | None = None


class JoinDecision(NamedTuple):
    """A decision about a JoinGroup: answered at once, or waiting (perhaps no longer) under `waits_as`."""

    decision: Decision
    answer: JoinAnswer | None = None
    waits_as: str = ""


class SyncDecision(NamedTuple):
    """A decision about a SyncGroup: answered at once, or waiting (perhaps no longer) under its member id."""

    decision: Decision
    answer: SyncAnswer | None = None
