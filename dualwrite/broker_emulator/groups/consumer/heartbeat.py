"""What the coordinator decides about a ConsumerGroupHeartbeat (KIP-848). Pure.

A heartbeat is everything: joining (epoch 0), leaving (-1, -2), subscribing, saying what one owns, and a sign of life.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.change import GroupChange, World
from dualwrite.broker_emulator.groups.consumer.downgrade import Outcome
from dualwrite.broker_emulator.groups.consumer.group import (
    JOIN_EPOCH,
    Assignment,
    ConsumerGroup,
    ConsumerMember,
    RefusedError,
    known_instance,
)
from dualwrite.broker_emulator.groups.consumer.resolution import RegexChange, due_for_resolution


class HeartbeatRequest(NamedTuple):
    """A ConsumerGroupHeartbeat; None (and -1) for what did not change since the last one."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: frozenset[str] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the member says all there is to say, as after an error; it is told its assignment then."""
        subscribes = self.subscribed_topics is not None or self.subscribed_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


class HeartbeatAnswer(NamedTuple):
    """Answer to a heartbeat that was granted."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None: it did not change."""


class HeartbeatDecision(NamedTuple):
    """What becomes of the group, and the answer."""

    outcome: Outcome
    answer: HeartbeatAnswer
    resolves: frozenset[str] = frozenset()
    """Regular expressions that are to be resolved now."""


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, world: World) -> HeartbeatDecision:
    """A member joins or lives. Raises RefusedError."""
    refuse_if_full(group, request.member_id, world.settings.max_size)
    change = GroupChange(group, world)
    before = _member(change, request)
    after = _updated(before, request)
    assigned_before = before.assigned
    regex = RegexChange.of(change.group, before, after)
    names_changed = after.subscribed_topics != before.subscribed_topics
    is_resolved = regex is RegexChange.CHANGED_AND_RESOLVED
    default = world.settings.assignors[0]
    other_assignor = change.group.with_member(after).assignor(default) != change.group.assignor(default)
    change.update_member(after, bumps=names_changed or is_resolved or other_assignor)
    change.assign()
    after = change.reconcile(after.member_id, request.owned, subscribes_anew=names_changed or regex.is_any)
    resolves = due_for_resolution(change.group, world)
    change.group = replace(
        change.group.with_member(alive_at(after, world.now_ms, world.settings.session_timeout_ms)),
        is_resolving=change.group.is_resolving or bool(resolves),
    )
    tells_assignment = (
        request.member_epoch == JOIN_EPOCH or request.is_full or after.assigned.keys() != assigned_before.keys()
    )
    answer = HeartbeatAnswer(
        after.member_id,
        after.member_epoch,
        world.settings.heartbeat_interval_ms,
        frozenset(after.assigned) if tells_assignment else None,
    )
    return HeartbeatDecision(change.group, answer, resolves)


def alive_at(member: ConsumerMember, now_ms: int, session_timeout_ms: int) -> ConsumerMember:
    """As after a sign of life: another session timeout begins."""
    return replace(member, session_deadline_ms=now_ms + session_timeout_ms)


def refuse_if_full(group: ConsumerGroup, member_id: str, max_size: int) -> None:
    """`group.consumer.max.size`. Raises RefusedError (81)."""
    if len(group.members) >= max_size and member_id not in group.members:
        raise RefusedError(
            ErrorCode.group_max_size_reached,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


# who it is


def _member(change: GroupChange, request: HeartbeatRequest) -> ConsumerMember:
    """The member before this heartbeat: a known one, a new one, or one in place of its former self."""
    joins = request.member_epoch == JOIN_EPOCH
    if request.instance_id is None:
        member = _dynamic_member(change.group, request.member_id, joins=joins)
        _check_epoch(member, request)
        return member
    present = change.group.static_member(request.instance_id)
    if not joins:
        member = known_instance(present, request.member_id, request.instance_id)
        _check_epoch(member, request)
        return member
    if present is None:
        return _dynamic_member(change.group, request.member_id, joins=True)
    if not present.is_away and not present.is_classic:
        raise RefusedError(
            ErrorCode.unreleased_instance_id,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group because "
            f"the instance id is owned by {present.member_id} member.",
        )
    return change.replace_static_member(present, request.member_id)


def _dynamic_member(group: ConsumerGroup, member_id: str, *, joins: bool) -> ConsumerMember:
    if joins and member_id not in group.members:
        return ConsumerMember(member_id=member_id)
    return group.known_member(member_id)


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """A member comes with its epoch, or with the one before if it may have missed the answer. Else it is fenced."""
    received, known = request.member_epoch, member.member_epoch
    if received in (JOIN_EPOCH, known):
        return
    missed_answer = received == member.previous_epoch and request.owned is not None
    if received < known and missed_answer and request.owned is not None and request.owned <= member.assigned.keys():
        return
    raise RefusedError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {'greater' if received > known else 'smaller'} member epoch ({received}) "
        f"than the one known by the group coordinator ({known}). The member must abandon all its partitions and "
        "rejoin.",
    )


def _updated(member: ConsumerMember, request: HeartbeatRequest) -> ConsumerMember:
    """With what the request says anew. Whoever sends heartbeats of this kind is no classic member (any more)."""
    timeout_ms, topics, regex = request.rebalance_timeout_ms, request.subscribed_topics, request.subscribed_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topics=member.subscribed_topics if topics is None else topics,
        subscribed_regex=member.subscribed_regex if regex is None else regex,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
        join_deadline_ms=None,
        sync_deadline_ms=None,
    )
