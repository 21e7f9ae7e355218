"""The coordinator's decisions about heartbeats, expired deadlines and changed topics, case by case."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer import membership
from dualwrite.broker_emulator.groups.consumer.group import NOTHING, HeartbeatResponse
from dualwrite.broker_emulator.groups.consumer.regular_expressions import compiled
from dualwrite.broker_emulator.groups.consumer.states import (
    NEXT_GROUP_STATES,
    NEXT_MEMBER_STATES,
    ConsumerGroupState,
    InvalidStepError,
    MemberState,
    check_group_step,
    check_member_step,
)

from .members import REBALANCE_MS, SETTINGS, Coordinator, partitions


def granted(response: HeartbeatResponse | int) -> HeartbeatResponse:
    assert isinstance(response, HeartbeatResponse)
    return response


def test_a_new_coordinator_restarts_all_sessions() -> None:
    group = Coordinator()
    group.heartbeat("m1", 0)
    group.heartbeat("m2", 0)
    group.heartbeat("m1", 2)
    group.now_ms += 10 * SETTINGS.session_timeout_ms
    group.group = membership.after_load(group.consumers, group.context)
    group.pass_time(REBALANCE_MS - 1)
    assert set(group.consumers.members) == {"m1", "m2"}
    group.pass_time(1)
    assert set(group.consumers.members) == {"m2"}


def test_a_full_group_accepts_only_its_members() -> None:
    group = Coordinator(settings=SETTINGS._replace(max_size=1))
    group.heartbeat("m1", 0)
    assert group.tried("m2", 0) == 81
    assert granted(group.tried("m1", 0)).member_epoch == 2


def test_assignments_can_be_put_off() -> None:
    group = Coordinator(settings=SETTINGS._replace(assignment_interval_ms=1_000))
    assert group.heartbeat("m1", 0).assignment == partitions("a", 0, 1, 2, 3)
    waiting = group.heartbeat("m2", 0)
    assert (waiting.member_epoch, waiting.assignment, group.consumers.group_epoch) == (2, NOTHING, 3)
    assert group.consumers.state is ConsumerGroupState.ASSIGNING
    group.pass_time(999)
    assert group.heartbeat("m2", 2).member_epoch == 2
    group.pass_time(1)
    assert group.heartbeat("m2", 2).member_epoch == 3


def test_topics_that_are_created_grow_or_are_deleted_are_noticed() -> None:
    group = Coordinator()
    group.heartbeat("m1", 0, subscribed_topics=frozenset({"a", "new"}))
    group.change_topic("unrelated", 3)
    assert group.heartbeat("m1", 2).member_epoch == 2
    group.change_topic("new", 1)
    assert group.heartbeat("m1", 2).assignment == partitions("a", 0, 1, 2, 3) | partitions("new", 0)
    group.change_topic("new", 2)
    assert group.heartbeat("m1", 3).assignment == partitions("a", 0, 1, 2, 3) | partitions("new", 0, 1)
    group.change_topic("new", None)
    assert group.heartbeat("m1", 4).assignment == partitions("a", 0, 1, 2, 3)
    group.settle()
    assert group.consumers.state is ConsumerGroupState.STABLE


def test_expressions_are_resolved_after_the_response_and_refreshed_later() -> None:
    group = Coordinator()
    first = group.heartbeat("m1", 0, subscribed_topics=None, subscribed_regex="[ab]")
    assert (first.member_epoch, first.assignment, group.consumers.group_epoch) == (1, NOTHING, 2)
    assert group.heartbeat("m1", 1).assignment == partitions("a", 0, 1, 2, 3) | partitions("b", 0, 1, 2)
    group.change_topic("b", None)
    group.change_topic("c", 1)
    assert group.heartbeat("m1", 2).assignment == partitions("a", 0, 1, 2, 3)  # deleted topics are revoked at once
    group.settle()
    group.heartbeat("m1", 3, subscribed_regex="[abc]")
    assert group.consumers.regular_expressions.keys() == {"[abc]"}
    group.settle()
    assert frozenset(group.member("m1").assigned) == partitions("a", 0, 1, 2, 3) | partitions("c", 0)
    group.change_topic("b", 1)
    group.pass_time(10_000)
    group.settle()
    assert not frozenset(group.member("m1").assigned) & partitions("b", 0)
    group.pass_time(1)
    group.settle()
    assert frozenset(group.member("m1").assigned) >= partitions("b", 0)


@pytest.mark.parametrize(
    ("expression", "matches", "does_not"),
    [
        ("a.*", "abc", "ba"),
        ("^(a|b)$", "b", "c"),
        (r"\Qa.b\E.*", "a.b-", "acb"),
        ("[[:alpha:]_]+", "a_b", "a1"),
        (r"[\p{Lu}x]\pN", "B7", "b7"),
        (r"a\z", "a", "ab"),
        ("(?i)abc", "ABC", "abd"),
        (r"(?<name>a)\.b", "a.b", "axb"),
        ("[]a]{1,3}", "a]a", "b"),
    ],
)
def test_expressions_of_re2(expression: str, matches: str, does_not: str) -> None:
    assert compiled(expression).fullmatch(matches)
    assert not compiled(expression).fullmatch(does_not)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("[", "missing closing ]"),
        ("(", "missing closing )"),
        (")", "regexp/syntax: internal error"),
        ("a**", "invalid nested repetition operator"),
        ("a++", "invalid nested repetition operator"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?<=a)", "invalid named capture"),
        (r"\1", "invalid escape sequence"),
        ("a{2,1}", "invalid repeat count"),
        ("x{1001}", "invalid repeat count"),
        ("[z-a]", "invalid character class range"),
        ("[[:foo:]]", "invalid character class range"),
        (r"\p{Foo}", "invalid character class range"),
        ("*", "missing argument to repetition operator"),
        ("\\", "trailing backslash at end of expression"),
        ("(?x)a", "invalid or unsupported Perl syntax"),
    ],
)
def test_expressions_that_re2_refuses_are_refused_in_its_words(expression: str, complaint: str) -> None:
    with pytest.raises(RefusedError) as refused:
        compiled(expression)
    assert refused.value.error == 128
    expected = f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {complaint}."
    assert refused.value.message == expected


def test_steps_that_the_tables_do_not_have_raise() -> None:
    assert set(NEXT_GROUP_STATES) == set(ConsumerGroupState)
    assert set(NEXT_MEMBER_STATES) == set(MemberState)
    with pytest.raises(InvalidStepError, match="cannot go from Dead to Stable"):
        check_group_step("g", ConsumerGroupState.DEAD, ConsumerGroupState.STABLE)
    with pytest.raises(InvalidStepError, match="cannot go from STABLE to UNKNOWN"):
        check_member_step("m", MemberState.STABLE, MemberState.UNKNOWN)
