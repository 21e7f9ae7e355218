"""Decisions by the index equal those by all rules one by one, as KIP-11, KIP-290 and KIP-679 define them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.security.acl import (
    Acl,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from dualwrite.broker_emulator.security.authorizer import AclIndex, StandardAuthorizer
from dualwrite.broker_emulator.security.principal import Principal
from dualwrite.broker_emulator.storage.storage import MemoryOnly
from tests.support.proof_only import examples

ALICE, BOB, ROOT = (Principal("User", name) for name in ("alice", "bob", "root"))
HOSTS = ("10.0.0.1", "10.0.0.2")
NAMES = ("a", "ab", "abc", "b", "*", "*a", "hardcode")
OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.TWO_PHASE_COMMIT,
)

acls = st.builds(
    Acl,
    resource_type=st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
    name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    principal=st.sampled_from(("User:alice", "User:bob", "User:*", "Group:alice")),
    host=st.sampled_from((*HOSTS, "*")),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from((PermissionType.ALLOW, PermissionType.DENY)),
)
questions = st.tuples(
    st.sampled_from((ALICE, BOB, ROOT, Principal("Group", "alice"))),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
    st.sampled_from((*NAMES, "abcd", "", "z")),
)
Question = tuple[Principal, str, AclOperation, ResourceType, str]


def authorizer_with(rules: Sequence[Acl], *, is_open: bool = False) -> StandardAuthorizer:
    authorizer = StandardAuthorizer(MemoryOnly(1), [ROOT], is_open=is_open)
    for acl in rules:
        authorizer.add(acl)
    return authorizer


def read_one_by_one(rules: Sequence[Acl], question: Question, *, is_open: bool) -> bool:
    """Decide as the KIPs define it, in the order of their sentences."""
    principal, host, operation, resource_type, name = question
    if principal == ROOT:
        return True
    implying = {
        AclOperation.DESCRIBE: {"READ", "WRITE", "DELETE", "ALTER"},
        AclOperation.DESCRIBE_CONFIGS: {"ALTER_CONFIGS"},
    }.get(operation, set())
    covering = [
        acl
        for acl in rules
        if acl.resource_type == resource_type
        and (
            (acl.pattern_type == PatternType.LITERAL and acl.name in (name, "*"))
            or (acl.pattern_type == PatternType.PREFIXED and name.startswith(acl.name))
        )
    ]
    if not covering:
        return is_open
    speaking = [acl for acl in covering if acl.principal in (str(principal), "User:*") and acl.host in (host, "*")]
    if any(acl.permission.name == "DENY" and acl.operation.name in ("ALL", operation.name) for acl in speaking):
        return False
    return any(
        acl.permission.name == "ALLOW" and acl.operation.name in {"ALL", operation.name, *implying} for acl in speaking
    )


@settings(max_examples=examples(150), deadline=None)
@given(rules=st.lists(acls, max_size=12), asked=st.lists(questions, min_size=1, max_size=8), is_open=st.booleans())
def test_the_index_decides_as_the_rules_do(rules: list[Acl], asked: list[Question], is_open: bool) -> None:
    authorizer = authorizer_with(rules, is_open=is_open)
    for question in asked + asked:  # the second time from memory
        assert authorizer.is_allowed(*question) == read_one_by_one(rules, question, is_open=is_open), question


@settings(max_examples=examples(150), deadline=None)
@given(rules=st.lists(acls, max_size=6))
def test_a_right_on_any_resource_is_found_where_a_resource_has_it(rules: list[Acl]) -> None:
    """KIP-679 decides by patterns; the decision has to hold for names, long ones for prefixes included."""
    names = {*NAMES, *(name + more for name in NAMES for more in ("~", "a~", "b~", "c~"))}
    exact = [acl for acl in rules if acl.operation in (AclOperation.ALL, AclOperation.WRITE)]
    authorizer = authorizer_with(rules)
    for principal, host in product((ALICE, ROOT), HOSTS):
        said = authorizer.is_allowed_on_any(principal, host, AclOperation.WRITE, ResourceType.TOPIC)
        has_one = any(
            read_one_by_one(exact, (principal, host, AclOperation.WRITE, ResourceType.TOPIC, name), is_open=False)
            for name in names
            if name != "*"
        )
        refused_outright = any(
            acl[:3] == (ResourceType.TOPIC, "*", PatternType.LITERAL)
            and acl.permission is PermissionType.DENY
            and acl.principal in (str(principal), "User:*")
            and acl.host in (host, "*")
            for acl in exact
        )
        if has_one:
            assert said or refused_outright
        if refused_outright and principal != ROOT:
            assert not said


def test_the_index_forgets_removed_rules() -> None:
    index = AclIndex()
    rules = [
        Acl.allow("User:a", AclOperation.READ, ResourceType.TOPIC, name, pattern_type=pattern)
        for name in NAMES
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
    ]
    for acl in rules + rules:
        index.add(acl)
    assert len(index) == len(rules)
    for acl in rules:
        index.remove(acl)
    assert list(index) == []
    assert vars(index) == {**vars(AclIndex()), "_prefix_lengths": {ResourceType.TOPIC: {}}}
    with pytest.raises(KeyError):
        index.remove(rules[0])
