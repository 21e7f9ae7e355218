"""When a group's regular expressions are resolved, and what comes of it. Pure.

Kafka resolves them in the background: a member that subscribes with a new one is answered first, and gets its
partitions with a later heartbeat. So it is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from dualwrite.broker_emulator.groups.consumer.change import GroupChange, World
from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup, ConsumerMember, RegularExpression
from dualwrite.broker_emulator.groups.consumer.regular_expressions import compiled
from dualwrite.broker_emulator.groups.consumer.topics import metadata_hash

MIN_INTERVAL_MS = 10_000
"""Regular expressions of a group are resolved together, and no more often than that."""


class RegexChange(Enum):
    """What a heartbeat means for its member's regular expression."""

    NONE = 0
    CHANGED = 1
    """To one whose topics are not known yet: the group epoch grows when they are."""
    CHANGED_AND_RESOLVED = 2

    @property
    def is_any(self) -> bool:
        return self is not RegexChange.NONE

    @classmethod
    def of(cls, group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember) -> RegexChange:
        """Raises RefusedError (128) for a new expression that is none."""
        regex = after.subscribed_regex
        if regex == before.subscribed_regex:
            return cls.NONE
        if not regex:
            return cls.CHANGED_AND_RESOLVED
        if group.subscribers_of(regex) == 0:
            compiled(regex)
            return cls.CHANGED
        return cls.CHANGED_AND_RESOLVED if regex in group.regular_expressions else cls.CHANGED


def due_for_resolution(group: ConsumerGroup, world: World) -> frozenset[str]:
    """All of the group's expressions, where some are not resolved, topics changed, or it is time to look again."""
    wanted, known = group.subscribed_regexes, group.regular_expressions
    if not wanted or group.is_resolving:
        return frozenset()
    if not known:
        return wanted
    last_ms = max(found.timestamp_ms for found in known.values())
    if world.now_ms <= last_ms + MIN_INTERVAL_MS:
        return frozenset()
    is_due = (
        len(wanted) != len(known)
        or max(found.version for found in known.values()) != world.topics.version
        or world.now_ms > last_ms + world.settings.regex_refresh_interval_ms
    )
    return wanted if is_due else frozenset()


def resolved(group: ConsumerGroup, found: Mapping[str, RegularExpression], world: World) -> ConsumerGroup:
    """The topics of the expressions are known: the group epoch grows where they are others than before."""
    in_use = {regex: topics for regex, topics in found.items() if regex in group.subscribed_regexes}
    known = group.regular_expressions
    is_new = any(
        known[regex].topics != now.topics if regex in known else bool(now.topics) for regex, now in in_use.items()
    )
    after = replace(group, regular_expressions={**known, **in_use}, is_resolving=False)
    if not is_new and metadata_hash(after.subscribed_topics, world.topics) == group.metadata_hash:
        return after
    change = GroupChange(group, world)
    change.bump(after)
    return change.group
