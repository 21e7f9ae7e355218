"""Decisions about members: joining, rebalances, static members, sessions and time, without any I/O."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.group import (
    GroupState,
    Protocol,
)
from tests.emulator.groups.members import REBALANCE_MS, SESSION_MS, SimulatedGroup

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
ROUND_ROBIN_FIRST = (Protocol("roundrobin", b"r"), Protocol("range", b"m"))
RANGE_FIRST = (Protocol("range", b"m"), Protocol("roundrobin", b"r"))


# joining


def test_a_pending_id_cannot_become_a_static_member() -> None:
    simulated = SimulatedGroup()
    sent_away = simulated.answered(requires_known_member_id=True)
    response = simulated.answered(sent_away.member_id, group_instance_id="i")
    assert (response.error, response.member_id) == (ErrorCode.unknown_server_error, "")
    assert simulated.group.members == {}


def test_a_rebalance_waits_for_pending_ids() -> None:
    simulated = SimulatedGroup()
    (member,) = simulated.stable(1)
    simulated.answered(requires_known_member_id=True)
    assert simulated.join(member) is None
    simulated.advance(SESSION_MS)
    assert simulated.joined[member].generation == 2


def test_a_pending_member_may_join_after_all_members_were_removed() -> None:
    """A client may be killed after it got its id: the rebalance waits for that id."""
    simulated = SimulatedGroup()
    _, last = simulated.stable(2)
    simulated.advance(SESSION_MS // 4)
    assert simulated.heartbeat(last) == ErrorCode.none
    simulated.advance(SESSION_MS // 2)
    pending = simulated.answered(requires_known_member_id=True)
    simulated.advance(SESSION_MS // 2)
    assert (simulated.group.state, simulated.group.members) == (PREPARING, {})
    refused = simulated.answered(pending.member_id, protocols=())
    assert refused.error == ErrorCode.inconsistent_group_protocol
    response = simulated.answered(pending.member_id, protocols=(Protocol("sticky", b""),))
    assert (response.error, response.leader) == (0, pending.member_id)


def test_most_votes_among_the_common_protocols() -> None:
    simulated = SimulatedGroup(initial_delay_ms=10)
    offered = (RANGE_FIRST, ROUND_ROBIN_FIRST, ROUND_ROBIN_FIRST)
    members = [simulated.add(protocols=protocols) for protocols in offered]
    simulated.advance(100)
    assert simulated.group.protocol_name == "roundrobin"
    simulated.add(protocols=(Protocol("range", b""),))
    for member_id, protocols in zip(members, offered, strict=True):
        simulated.join(member_id, protocols=protocols)
    assert simulated.group.protocol_name == "range"


def test_the_last_to_join_again_are_refused_if_the_group_is_too_large() -> None:
    simulated = SimulatedGroup()
    members = simulated.stable(3)
    simulated.settings = simulated.settings._replace(max_size=2)
    simulated.fail_over()
    assert simulated.group.state is PREPARING
    responses = [simulated.join(member_id) for member_id in members]
    assert [response and response.error for response in responses] == [None, None, ErrorCode.group_max_size_reached]
    simulated.advance(REBALANCE_MS)
    assert set(simulated.group.members) == set(members[:2])


# rebalances


def test_a_member_that_does_not_join_again_in_time_is_removed() -> None:
    simulated = SimulatedGroup()
    first, second = simulated.stable(2)
    third = simulated.add()
    simulated.join(second)
    for _ in range(REBALANCE_MS // SESSION_MS * 2):
        simulated.heartbeat(first)  # alive, but not joining
        simulated.advance(SESSION_MS // 2)
    assert set(simulated.group.members) == {second, third}
    assert simulated.group.leader == second
    assert simulated.heartbeat(first) == ErrorCode.unknown_member_id


def test_an_assignment_that_cannot_be_stored() -> None:
    simulated = SimulatedGroup(initial_delay_ms=10)
    leader, follower = simulated.add(), simulated.add()
    simulated.advance(100)
    simulated.sync(follower)
    simulated.refuse_with = ErrorCode.not_coordinator
    response = simulated.sync(leader, {leader: b"all"})
    assert response is not None
    assert {response.error, simulated.synced[follower].error} == {ErrorCode.not_coordinator}
    assert simulated.group.state is PREPARING
    assert simulated.group.members[leader].assignment == b""


# the first rebalance of a group that was empty


def test_the_initial_delay_grows_while_members_join_up_to_their_rebalance_timeout() -> None:
    simulated = SimulatedGroup(initial_delay_ms=3_000)
    first = simulated.add(rebalance_timeout_ms=10_000)
    for _ in range(6):
        simulated.advance(1_500)
        simulated.add(rebalance_timeout_ms=10_000)
    assert first not in simulated.joined
    simulated.advance(1_500)
    assert simulated.joined[first].generation == 1
    assert len(simulated.group.members) == 7


# sessions


# leaving


def test_a_member_leaves_once_however_often_it_is_named() -> None:
    """A static member is found by its instance too, until it has left."""
    simulated = SimulatedGroup()
    first, static, last = simulated.add(), simulated.add(group_instance_id="i"), simulated.add()
    unknown, fenced = ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id
    leaving = [(first, None), (first, None), ("x", "i"), (last, "other"), (static, "i"), ("", "i"), (static, "i")]
    assert simulated.leave(*leaving) == [ErrorCode.none, unknown, fenced, unknown, ErrorCode.none, unknown, unknown]
    assert list(simulated.group.members) == [last]
    assert simulated.group.leader == last


# static members


def test_a_static_member_whose_return_cannot_be_stored() -> None:
    simulated = SimulatedGroup()
    (member,) = simulated.stable(1, group_instance_id="i")
    before = simulated.group
    simulated.refuse_with = ErrorCode.coordinator_not_available
    response = simulated.answered(group_instance_id="i")
    assert (response.error, simulated.group) == (ErrorCode.coordinator_not_available, before)
    assert simulated.heartbeat(member, instance="i") == ErrorCode.none


def test_requests_that_wait_for_a_static_member_are_fenced_by_its_successor() -> None:
    simulated = SimulatedGroup()
    (other,) = simulated.stable(1)
    joining = simulated.add(group_instance_id="i")
    assert simulated.join(group_instance_id="i") is None
    assert simulated.joined[joining].error == ErrorCode.fenced_instance_id
    simulated.join(other)
    (syncing,) = set(simulated.group.members) - {other}
    assert simulated.sync(syncing, group_instance_id="i") is None
    assert simulated.join(group_instance_id="i") is None
    assert simulated.synced[syncing].error == ErrorCode.fenced_instance_id
    assert simulated.group.state is PREPARING
    fenced = simulated.answered(syncing, group_instance_id="i")
    assert fenced.error == ErrorCode.fenced_instance_id


def test_a_rebalance_that_only_absent_static_members_take_part_in_waits_for_their_sessions() -> None:
    simulated = SimulatedGroup()
    static = simulated.add(group_instance_id="i", session_timeout_ms=2 * REBALANCE_MS)
    simulated.sync_all()
    dynamic = simulated.add()
    simulated.leave((dynamic, None))
    simulated.advance(REBALANCE_MS)
    assert (simulated.group.state, simulated.group.generation) == (PREPARING, 1)
    assert static in simulated.group.members
    simulated.advance(REBALANCE_MS)
    assert (simulated.group.state, simulated.group.members) == (EMPTY, {})
