"""Subscriptions by regular expression (KIP-848): matching whole topic names, and the times of resolution.

As in Kafka, expressions are resolved in the background: a member that subscribes with a new expression gets its
response first, and its partitions with a later heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.change import DecisionContext, GroupChange
from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup, ConsumerMember, RegularExpression
from dualwrite.broker_emulator.groups.consumer.topics import Topics, metadata_hash
from dualwrite.broker_emulator.linear_pattern import LinearPattern, PatternError
from dualwrite.broker_emulator.slices import selected

MIN_INTERVAL_MS = 10_000
"""Minimum interval between resolutions; all regular expressions of a group are resolved together."""


def compiled(expression: str) -> LinearPattern:
    """Compile an expression. Raises RefusedError (128) if RE2/J would refuse it."""
    try:
        return LinearPattern(expression)
    except PatternError as complaint:
        raise RefusedError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {complaint}.",
        ) from None


async def resolve(
    expressions: Iterable[str], topics: Topics, now_ms: int, is_visible: Callable[[str], bool]
) -> dict[str, RegularExpression]:
    """Return the visible topics that each expression matches; an invalid expression matches no topic."""
    version = topics.version
    names = await selected(is_visible, list(topics.names()))
    return {
        expression: RegularExpression(await _matching(expression, names), version, now_ms) for expression in expressions
    }


async def _matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    try:
        pattern = compiled(expression)
    except RefusedError:
        return frozenset()
    return frozenset(await selected(pattern.fullmatch, names))


# --- when a group resolves its expressions ---------------------------------------------------------------------------


class RegexChange(Enum):
    """The change that a heartbeat makes to its member's regular expression."""

    NONE = 0
    CHANGED = 1
    """To an unresolved expression: the group epoch is bumped once it is resolved."""
    CHANGED_AND_RESOLVED = 2

    @property
    def is_any(self) -> bool:
        return self is not RegexChange.NONE

    @classmethod
    def of(cls, group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember) -> RegexChange:
        """Compare a member before and after. Raises RefusedError (128) if a new expression is invalid."""
        regex = after.subscribed_regex
        if regex == before.subscribed_regex:
            return cls.NONE
        if not regex:
            return cls.CHANGED_AND_RESOLVED
        if group.subscribers_of(regex) == 0:
            compiled(regex)
            return cls.CHANGED
        return cls.CHANGED_AND_RESOLVED if regex in group.regular_expressions else cls.CHANGED


def due_for_resolution(group: ConsumerGroup, context: DecisionContext) -> frozenset[str]:
    """Return the group's expressions if some are unresolved, topics changed, or the refresh interval has passed."""
    wanted, known = group.subscribed_regexes, group.regular_expressions
    if not wanted or group.is_resolving:
        return frozenset()
    if not known:
        return wanted
    last_ms = max(found.timestamp_ms for found in known.values())
    if context.now_ms <= last_ms + MIN_INTERVAL_MS:
        return frozenset()
    is_due = (
        len(wanted) != len(known)
        or max(found.version for found in known.values()) != context.topics.version
        or context.now_ms > last_ms + context.settings.regex_refresh_interval_ms
    )
    return wanted if is_due else frozenset()


def resolved(group: ConsumerGroup, found: Mapping[str, RegularExpression], context: DecisionContext) -> ConsumerGroup:
    """Store the topics of resolved expressions; bump the group epoch if they changed."""
    in_use = {regex: topics for regex, topics in found.items() if regex in group.subscribed_regexes}
    known = group.regular_expressions
    is_new = any(
        known[regex].topics != now.topics if regex in known else bool(now.topics) for regex, now in in_use.items()
    )
    after = replace(group, regular_expressions={**known, **in_use}, is_resolving=False)
    if not is_new and metadata_hash(after.subscribed_topics, context.topics) == group.metadata_hash:
        return after
    change = GroupChange(group, context)
    change.bump_epoch(after)
    return change.group
