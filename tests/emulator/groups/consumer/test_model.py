"""Consumer groups under arbitrary use: members of both protocols join, leave, fail and lag, and topics change.

Invariants: no member has a partition that another one has or has not revoked; epochs only grow; a group's records
rebuild it. In the end, every member has its target, and the target is even.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dualwrite.broker_emulator.groups.consumer.group import NOTHING, Assignment, ConsumerGroup
from dualwrite.broker_emulator.groups.consumer.records import apply, decode_consumer_group_key
from dualwrite.broker_emulator.groups.consumer.states import ConsumerGroupState, MemberState
from dualwrite.broker_emulator.groups.consumer_protocol import read_assignment
from tests.support.proof_only import examples

from .members import REBALANCE_MS, SETTINGS, Coordinator, partitions, without_deadlines

NAMES = [f"m{number}" for number in range(5)]
EVERYTHING = partitions("a", *range(9)) | partitions("b", *range(9)) | partitions("c", *range(9))


class Client:
    """A consumer as it sees itself: its epoch, and the partitions that it works on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.owned: Assignment = NOTHING
        self.wanted: Assignment = NOTHING
        self.missed_a_response = False
        """Whether its next heartbeat sets all fields, so that the response has its assignment."""

    def obey(self) -> None:
        self.owned = self.wanted


class ClassicClient:
    """A cooperative consumer of the classic protocol in a group that migrates."""

    def __init__(self, coordinator: Coordinator, name: str, topics: set[str]) -> None:
        self._coordinator = coordinator
        self.name = name
        self._topics = frozenset(topics)
        self._generation = -1
        self._owned: frozenset[tuple[str, int]] = frozenset()

    def join(self) -> None:
        """Join, sync, and keep only the partitions of the new assignment."""
        joined = self._coordinator.join(self.name, self._topics, self._owned)
        assert not isinstance(joined, int)
        assert joined.generation >= self._generation
        self._generation = joined.generation
        synced = self._coordinator.sync(self.name, joined.generation)
        if not isinstance(synced, int) and synced.error == 0:
            self._owned = read_assignment(synced.assignment).partitions

    def live(self) -> None:
        """Send a heartbeat, and follow the error."""
        expected = self._expected_error()
        error = self._coordinator.classic_heartbeat(self.name, self._generation)
        assert error == expected
        if error in (22, 25):
            self._generation, self._owned = -1, frozenset()
        if error:
            self.join()

    def _expected_error(self) -> int:
        """Return the error of a heartbeat: fenced, of another generation, or with something to join for."""
        group = self._coordinator.consumers
        member = group.members.get(self.name)
        if member is None:
            return 25
        if self._generation != member.member_epoch:
            return 22
        has_to_revoke = member.state is MemberState.UNREVOKED_PARTITIONS
        may_receive = member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)
        return 27 if member.member_epoch < group.assignment_epoch or has_to_revoke or may_receive else 0


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        without_downgrade = SETTINGS._replace(session_timeout_ms=30_000, allows_downgrade=False)
        self.coordinator = Coordinator(settings=without_downgrade)
        self.clients: dict[str, Client] = {}
        self.classic: dict[str, ClassicClient] = {}
        self.group_epoch = 0
        self.assignment_epoch = 0
        self.stored: ConsumerGroup | None = None
        self.read = 0

    def _heartbeat(self, client: Client, **values: Any) -> None:
        """Send a heartbeat as clients do; a fenced member revokes everything and joins again."""
        known = self.coordinator.group
        if client.missed_a_response and isinstance(known, ConsumerGroup) and client.name in known.members:
            topics = known.members[client.name].subscribed_topics
            everything = {"rebalance_timeout_ms": REBALANCE_MS, "owned": client.owned, "subscribed_topics": topics}
            values = {**everything, **{name: value for name, value in values.items() if value is not None}}
        client.missed_a_response = False
        response = self.coordinator.tried(client.name, client.epoch, **values)
        if isinstance(response, int):
            is_member = isinstance(known, ConsumerGroup) and client.name in known.members
            assert response == (110 if is_member else 25)
            client.epoch, client.owned, client.wanted = 0, NOTHING, NOTHING
            return
        assert response.member_epoch >= client.epoch
        client.epoch = response.member_epoch
        if response.assignment is not None:
            client.wanted = response.assignment

    @rule(
        name=st.sampled_from(NAMES), topics=st.sets(st.sampled_from("abc")), assignor=st.sampled_from([None, "range"])
    )
    def join(self, name: str, topics: set[str], assignor: str | None) -> None:
        client = self.clients[name] = Client(name)
        self._heartbeat(client, subscribed_topics=frozenset(topics), server_assignor=assignor)

    @rule(name=st.sampled_from(NAMES))
    def join_by_expression(self, name: str) -> None:
        client = self.clients[name] = Client(name)
        self._heartbeat(client, subscribed_topics=frozenset(), subscribed_regex="[ab]")

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), reports=st.booleans(), topics=st.none() | st.sets(st.sampled_from("abc")))
    def live(self, data: st.DataObject, reports: bool, topics: set[str] | None) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())))
        if client.epoch == 0:
            self._heartbeat(client)
            return
        if reports:
            client.obey()
        named = None if topics is None else frozenset(topics)
        self._heartbeat(client, owned=client.owned if reports else None, subscribed_topics=named)

    @precondition(
        lambda self: isinstance(self.coordinator.group, ConsumerGroup) and bool(self.coordinator.group.members)
    )
    @rule(name=st.sampled_from(["c1", "c2"]), topics=st.sets(st.sampled_from("abc")))
    def join_as_a_classic_member(self, name: str, topics: set[str]) -> None:
        self.classic[name] = ClassicClient(self.coordinator, name, topics)
        self.classic[name].join()

    @precondition(lambda self: self.classic)
    @rule(data=st.data())
    def live_as_a_classic_member(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(list(self.classic.values()))).live()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def miss_an_answer(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(list(self.clients.values())))
        if client.epoch > 0:
            self.coordinator.tried(client.name, client.epoch, owned=client.owned)
            client.missed_a_response = True

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.clients)))
        del self.clients[name]
        group = self.coordinator.group
        is_member = isinstance(group, ConsumerGroup) and name in group.members
        response = self.coordinator.tried(name, -1)
        assert (25 if isinstance(response, int) else response.member_epoch) == (-1 if is_member else 25)

    @rule(duration_ms=st.sampled_from([1_000, REBALANCE_MS, 31_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.coordinator.pass_time(duration_ms)

    @rule(name=st.sampled_from("abc"), count=st.none() | st.integers(1, 6))
    def change_topic(self, name: str, count: int | None) -> None:
        if count is not None or name in self.coordinator.counts:
            self.coordinator.change_topic(name, count)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        group = self.coordinator.group
        if isinstance(group, ConsumerGroup):
            owned = [name for member in group.members.values() for name in member.owned]
            assert len(owned) == len(set(owned))

    @invariant()
    def epochs_only_grow(self) -> None:
        group = self.coordinator.group
        if isinstance(group, ConsumerGroup):
            assert group.group_epoch >= self.group_epoch
            assert self.assignment_epoch <= group.assignment_epoch <= group.group_epoch
            assert all(member.member_epoch <= group.assignment_epoch for member in group.members.values())
            self.group_epoch, self.assignment_epoch = group.group_epoch, group.assignment_epoch

    @invariant()
    def records_rebuild_the_group(self) -> None:
        for key, value in self.coordinator.log[self.read :]:
            decoded = decode_consumer_group_key(key)
            assert decoded is not None
            self.stored = apply(self.stored, decoded, value)
        self.read = len(self.coordinator.log)
        group = self.coordinator.group
        if isinstance(group, ConsumerGroup) and self.stored is not None:
            assert without_deadlines(self.stored) == without_deadlines(group)

    def _let_all_live(self) -> None:
        for _ in range(60):
            for client in self.clients.values():
                if client.epoch == 0:
                    self._heartbeat(client)
                else:
                    client.obey()
                    self._heartbeat(client, owned=client.owned)
            for classic in self.classic.values():
                if self.coordinator.consumers.members:  # an empty group would become a classic one
                    classic.live()
            self.coordinator.pass_time(1_000)

    def teardown(self) -> None:
        """Let all clients behave: every subscribed partition gets assigned, evenly, and the group is stable."""
        group = self.coordinator.group
        if not isinstance(group, ConsumerGroup):
            return
        self.coordinator.pass_time(11_000)  # regular expressions may be resolved again
        self._let_all_live()
        # without members of the new protocol, only a join looks for changed topics and makes a target, as in Kafka
        for name, classic in self.classic.items():
            if name in self.coordinator.consumers.members:
                classic.join()
        self._let_all_live()
        group = self.coordinator.consumers
        if not group.members:
            return
        assert group.state is ConsumerGroupState.STABLE
        for member in group.members.values():
            assert member.state is MemberState.STABLE
            assert frozenset(member.assigned) == group.target(member.member_id)
            assert member.is_classic or frozenset(member.assigned) == self.clients[member.member_id].wanted
        topics = [self.coordinator.context.topics.get(name) for name in group.subscribed_topics]
        assert sum(len(member.assigned) for member in group.members.values()) == sum(
            topic.partitions for topic in topics if topic is not None
        )


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = hypothesis_settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
