"""Who leaves a consumer group, or is given up: sessions that end, partitions not given up in time. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dualwrite.broker_emulator.groups.consumer import downgrade
from dualwrite.broker_emulator.groups.consumer.change import GroupChange, World
from dualwrite.broker_emulator.groups.consumer.downgrade import Downgrade, Outcome
from dualwrite.broker_emulator.groups.consumer.group import (
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    RegularExpression,
    known_instance,
)
from dualwrite.broker_emulator.groups.consumer.heartbeat import HeartbeatAnswer, HeartbeatDecision, HeartbeatRequest
from dualwrite.broker_emulator.groups.consumer.states import MemberState


def leave(group: ConsumerGroup, request: HeartbeatRequest, world: World) -> HeartbeatDecision:
    """A member leaves for good (-1), or, if it is static, for a while (-2). Raises RefusedError."""
    answer = HeartbeatAnswer(request.member_id, request.member_epoch)
    if request.instance_id is None:
        member = group.known_member(request.member_id)
    else:
        member = known_instance(group.static_member(request.instance_id), request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_FOR_A_WHILE_EPOCH:
            change = GroupChange(group, world)
            kept = dict.fromkeys(member.assigned, 0)  # whoever comes back in its place may commit with any epoch
            away = replace(member, member_epoch=LEAVE_FOR_A_WHILE_EPOCH, assigned=kept, revoking={})
            change.become(group.with_member(away))
            return HeartbeatDecision(change.group, answer)
    return HeartbeatDecision(give_up(group, [member.member_id], world), answer)


def give_up(group: ConsumerGroup, member_ids: Collection[str], world: World) -> Outcome:
    """Members are gone. The others get a new target with their next heartbeat, or are a classic group again."""
    if downgrade.is_possible(group, member_ids, world.settings):
        return Downgrade(downgrade.to_classic(group, world, without=member_ids), rebalances=True)
    change = GroupChange(group, world)
    change.remove(member_ids)
    return change.group


def tick(group: ConsumerGroup, world: World) -> Outcome:
    """Whoever's time is over by now is given up, in the order in which it fell due."""
    outcome: Outcome = group
    while isinstance(outcome, ConsumerGroup):
        due_ms = outcome.next_deadline_ms
        if due_ms is None or due_ms > world.now_ms:
            break
        late = next(member.member_id for member in outcome.members.values() if due_ms in member.deadlines)
        outcome = give_up(outcome, [late], world)
    return outcome


def after_load(group: ConsumerGroup, world: World) -> ConsumerGroup:
    """A new coordinator has read the group: sessions begin anew, and so does the time to give partitions up."""
    members = {member_id: _after_load(member, world) for member_id, member in group.members.items()}
    expressions = {
        regex: RegularExpression(found.topics, -1, found.timestamp_ms)
        for regex, found in group.regular_expressions.items()
    }
    return replace(group, members=members, regular_expressions=expressions)


def _after_load(member: ConsumerMember, world: World) -> ConsumerMember:
    classic = member.classic
    session_ms = world.settings.session_timeout_ms if classic is None else classic.session_timeout_ms
    must_revoke = member.state is MemberState.UNREVOKED_PARTITIONS and classic is None
    return replace(
        member,
        session_deadline_ms=world.now_ms + session_ms,
        rebalance_deadline_ms=world.now_ms + member.rebalance_timeout_ms if must_revoke else None,
    )
