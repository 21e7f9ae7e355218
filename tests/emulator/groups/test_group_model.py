"""Any order of joins, syncs, heartbeats, commits, departures, failovers and time keeps a group's invariants."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.group import VALID_PREVIOUS_STATES, GroupState, Protocol
from dualwrite.broker_emulator.groups.records import decode_group_value, encode_group_value
from tests.emulator.groups.members import REBALANCE_MS, SESSION_MS, SimulatedGroup, as_recorded
from tests.support.proof_only import examples

PARTITIONS = range(7)
OFFERED = [(Protocol("range", b"r"),), (Protocol("range", b"r"), Protocol("sticky", b"s"))]
INSTANCES = [None, None, "i", "j"]
MISSED = st.sampled_from([0, 0, 0, 1, 2])


def encode(partitions: list[int]) -> bytes:
    return bytes(partitions)


class GroupModel(RuleBasedStateMachine):
    """Members believe their responses; the group must never make two members believe contradictory things."""

    member_ids = Bundle("member_ids")

    def __init__(self) -> None:
        super().__init__()
        self.simulated = SimulatedGroup()
        self.believed: dict[str, int] = {}
        """The generation in the last response to each member."""
        self.protocols: dict[int, str | None] = {}
        self.instances: dict[str, str | None] = {}
        self.newest_generation = 0
        self.before = self.simulated.group

    @initialize(
        target=member_ids,
        initial_delay_ms=st.sampled_from([0, 3_000]),
        max_size=st.sampled_from([3, 100]),
        instances=st.lists(st.sampled_from([None, "i", "j"]), max_size=3, unique_by=lambda name: name or object()),
    )
    def begin(self, initial_delay_ms: int, max_size: int, instances: list[str | None]) -> object:
        """Start with a group that is mostly stable already."""
        self.simulated = SimulatedGroup(initial_delay_ms=initial_delay_ms, max_size=max_size)
        self.before = self.simulated.group
        members = [self.simulated.add(group_instance_id=instance, protocols=OFFERED[1]) for instance in instances]
        self.instances = dict(zip(members, instances, strict=True))
        self.all_members_do("join and sync")
        self.before = self.simulated.group
        return multiple(*members)

    def generation_of(self, member_id: str, missed: int) -> int:
        """Return the generation that a member knows if it missed the last `missed` responses."""
        return max(self.believed.get(member_id, -1) - missed, -1)

    # actions of members

    @rule(
        target=member_ids,
        instance=st.sampled_from(INSTANCES),
        protocols=st.sampled_from(OFFERED),
        requires_known_member_id=st.booleans(),
    )
    def come(self, instance: str | None, protocols: tuple[Protocol, ...], requires_known_member_id: bool) -> object:
        before = {*self.simulated.group.members, *self.simulated.group.pending_members}
        response = self.simulated.join(
            group_instance_id=instance, protocols=protocols, requires_known_member_id=requires_known_member_id
        )
        known = {*self.simulated.group.members, *self.simulated.group.pending_members} - before
        new = known if response is None else {response.member_id}
        for member_id in new:
            self.instances[member_id] = instance
        return multiple(*sorted(new - {""}))

    @rule(member_id=member_ids, protocols=st.sampled_from(OFFERED))
    def join_again(self, member_id: str, protocols: tuple[Protocol, ...]) -> None:
        self.simulated.join(member_id, group_instance_id=self.instances[member_id], protocols=protocols)

    @rule(member_id=member_ids, missed=MISSED)
    def sync(self, member_id: str, missed: int) -> None:
        self.ask_for_assignment(member_id, self.generation_of(member_id, missed))

    def ask_for_assignment(self, member_id: str, generation: int) -> None:
        """Let a leader assign the partitions to the members that it knows."""
        response = self.simulated.joined.get(member_id)
        members = [] if response is None else [member.member_id for member in response.members]
        shares = {name: encode(list(PARTITIONS)[index :: len(members)]) for index, name in enumerate(members)}
        instance = self.instances[member_id]
        given = self.simulated.sync(member_id, shares, generation=generation, group_instance_id=instance)
        if given is not None and given.error is ErrorCode.none:
            assert generation == self.simulated.group.generation
            assert given.assignment == self.simulated.group.members[member_id].assignment

    @rule(does=st.sampled_from(["join", "sync", "join and sync"]))
    def all_members_continue(self, does: str) -> None:
        self.all_members_do(does)

    def all_members_do(self, does: str) -> None:
        self.simulated.advance(6_000)  # a first rebalance's delay
        for member_id, member in tuple(self.simulated.group.members.items()):
            if "join" in does and not member.awaits_join and self.simulated.group.state is not GroupState.STABLE:
                self.simulated.join(member_id, group_instance_id=member.group_instance_id, protocols=member.protocols)
        self.responses_are_believed()
        if "sync" in does:
            for member_id in sorted(self.simulated.group.members):
                self.ask_for_assignment(member_id, self.believed.get(member_id, -1))

    @rule(member_id=member_ids, missed=MISSED)
    def heartbeat(self, member_id: str, missed: int) -> None:
        generation = self.generation_of(member_id, missed)
        error = self.simulated.heartbeat(member_id, generation, self.instances[member_id])
        if error in (ErrorCode.none, ErrorCode.rebalance_in_progress):
            assert generation == self.simulated.group.generation

    @rule(member_id=member_ids, missed=MISSED, transactional=st.booleans())
    def commit(self, member_id: str, missed: int, transactional: bool) -> None:
        """No member with a stale generation may commit; a member of the present one always may, in a transaction."""
        generation = self.generation_of(member_id, missed)
        group = self.simulated.group
        error = self.simulated.commit(member_id, generation, self.instances[member_id], transactional=transactional)
        is_current = member_id in group.members and generation == group.generation
        if error is ErrorCode.none and generation >= 0:
            assert is_current
        if is_current and transactional:
            assert error is ErrorCode.none

    @rule(member_id=member_ids)
    def leave(self, member_id: str) -> None:
        self.simulated.leave((member_id, self.instances[member_id]))
        assert member_id not in self.simulated.group.members or self.instances[member_id] is not None

    @rule(duration_ms=st.sampled_from([1, 1_000, SESSION_MS // 2, SESSION_MS, REBALANCE_MS, 10 * REBALANCE_MS]))
    def time_passes(self, duration_ms: int) -> None:
        self.simulated.advance(duration_ms)

    @rule()
    def coordinator_moves(self) -> None:
        """Let a new coordinator load the stored group."""
        if self.simulated.stored is None or self.simulated.group.state is not GroupState.STABLE:
            return  # otherwise generations would repeat
        self.simulated.fail_over()
        self.before = self.simulated.group

    # invariants

    @invariant()
    def responses_are_believed(self) -> None:
        for member_id, response in self.simulated.joined.items():
            if response.error is ErrorCode.none:
                assert response.generation >= self.believed.get(member_id, 0)
                self.believed[member_id] = response.generation
                assert self.protocols.setdefault(response.generation, response.protocol_name) == response.protocol_name

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.simulated.group.generation >= self.newest_generation
        self.newest_generation = self.simulated.group.generation

    @invariant()
    def no_member_is_ahead_of_the_group(self) -> None:
        assert all(generation <= self.simulated.group.generation for generation in self.believed.values())

    @invariant()
    def every_partition_is_given_once_in_a_generation(self) -> None:
        group = self.simulated.group
        if group.state is GroupState.STABLE:
            given = [member.assignment for member in group.members.values() if member.assignment]
            partitions = [partition for share in given for partition in share]
            assert len(partitions) == len(set(partitions)), given

    @invariant()
    def the_leader_is_a_member_and_instances_are_held_once(self) -> None:
        group = self.simulated.group
        assert (group.leader in group.members) if group.members else group.leader is None
        instances = [member.group_instance_id for member in group.members.values() if member.group_instance_id]
        assert len(instances) == len(set(instances))
        assert not set(group.members) & set(group.pending_members)
        assert group.pending_sync <= set(group.members)

    @invariant()
    def every_wait_has_a_deadline(self) -> None:
        """No state lasts for ever because of members that went away."""
        group = self.simulated.group
        if group.state is GroupState.PREPARING_REBALANCE:
            assert group.join_deadline_ms is not None
        elif group.state is GroupState.COMPLETING_REBALANCE:
            assert group.sync_deadline_ms is not None or not group.pending_sync
        for member in group.members.values():
            assert member.session_deadline_ms is not None or member.awaits_join or member.awaits_sync

    @invariant()
    def requests_wait_only_in_states_that_end_the_wait(self) -> None:
        group = self.simulated.group
        for member in group.members.values():
            assert not member.awaits_join or group.state is GroupState.PREPARING_REBALANCE
            assert not member.awaits_sync or group.state is GroupState.COMPLETING_REBALANCE

    @invariant()
    def states_follow_the_table(self) -> None:
        group = self.simulated.group
        if (
            group.previous_state is not GroupState.DEAD
            and group is not self.before
            and group.state != self.before.state
        ):
            assert group.previous_state in VALID_PREVIOUS_STATES[group.state]
        self.before = group

    @invariant()
    def a_stable_group_survives_its_record(self) -> None:
        group = self.simulated.group
        if group.state is GroupState.STABLE and all(len(m.protocols) == 1 for m in group.members.values()):
            decoded = decode_group_value("g", encode_group_value(group))
            assert as_recorded(decoded) == as_recorded(group)


GroupModel.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
TestGroupModel = GroupModel.TestCase
