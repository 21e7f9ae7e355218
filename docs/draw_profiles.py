"""Write docs/profiles.md from the tables in the code: `python docs/draw_profiles.py`."""

from __future__ import annotations

from pathlib import Path

from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.profiles import Profile, rows

PAGE = Path(__file__).with_name("profiles.md")

_HEAD = """# Profiles of the broker emulator

Whose behaviour the emulator imitates ([how to choose](emulator.md#whose-behaviour)). Each row is a field of
`Behaviours` in `dualwrite/broker_emulator/profiles.py`, or of an API in `dualwrite/broker_emulator/api/registry.py`;
a test keeps this page equal to them.

## Behaviours
"""

_BETWEEN = """
## Newest versions of the APIs

Of those that differ, in brackets with `unstable.api.versions.enable`. Those of the releases are compared with
what Apache Kafka 4.4.0, 4.3.1 and 3.9.2 answer. The oldest versions are those of Kafka 4 in all profiles, because the
codec has no older ones (KIP-896).
"""

_TAIL = """
## What is not in the table

`kip-939-pr-21735` and `kip-939-pr-22704` are [#21735](https://github.com/apache/kafka/pull/21735) (KAFKA-15370) and
[#22704](https://github.com/apache/kafka/pull/22704) (KAFKA-20739), both open, as far as their descriptions, reviews
and tests tell. What they do not mention is as in Kafka 4.4. Not known of them:

* of #21735: the error of KeepPreparedTxn below `transaction.version` 2 (here 35), and whether it will have a level of
  its own; which previous producer id it will keep in the end, because its tests and the KIP disagree;
* of #22704: whether it looks at a pending transition and at the expected pair before or after it answers for a
  prepared transaction (here after). It gives both incarnations of a client the same pair, so that neither is fenced:
  KIP-939 explains the consequences. Its profile shows the effect on a client.

In both, a broker allows Enable2Pc by `transaction.two.phase.commit.enable`, and a client needs the ACLs WRITE and
TWO_PHASE_COMMIT (53), as in Kafka since 4.1.

`redpanda` was never compared with a Redpanda. It follows the [source of December
2024](https://github.com/redpanda-data/redpanda/tree/1c6cff34ea8b4b65db02eb603d21dfef59c0f61c/src/v) in the rows that
name it and in the versions of APIs (`kafka/server/handlers`), and is otherwise as `kafka-3.9`. Known and not imitated:
EndTxn of a transaction without partitions is accepted there, a second EndTxn(commit) never gets 51, the abort at the
timeout has the producer's epoch, and topics and brokers have other settings.

`automq` is another name of `kafka-3.9`, because [AutoMQ](https://github.com/AutoMQ/automq) has the versions of APIs and
the coordinator of that release (looked at: the source of August 2026).

`kafka-4.3` and `kafka-4.4` differ in API versions only. What else Kafka 4.4 changed is in both as in 4.4: settings
that came with it (such as `max.decompressed.message.bytes`), the assignment epochs of consumer groups, and the
refusal of CreatePartitions for too many partitions.
"""


def _value(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _table(first: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    head = (*first, *(f"`{profile}`" for profile in Profile))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *lines))


def behaviours() -> str:
    """Draw the table of behaviours."""
    lines = [
        (f"`{name}`", row.what, row.source, *(_value(row.values[profile]) for profile in Profile))
        for name, row in rows()
    ]
    return _table(("name", "what", "source"), lines)


def _shown(versions: list[int]) -> list[str]:
    return ["none" if version < 0 else str(version) for version in versions]


def newest_versions() -> str:
    """Draw the table of the APIs whose newest version differs between profiles."""
    lines = []
    for api in APIS.values():
        stable = [api.max_version_for(BrokerConfig(profile=profile)) for profile in Profile]
        unstable = [
            api.max_version_for(BrokerConfig(profile=profile, unstable_api_versions_enable=True)) for profile in Profile
        ]
        if len({*stable, *unstable}) > 1:
            pairs = zip(_shown(stable), _shown(unstable), strict=True)
            cells = (old if old == new else f"{old} ({new})" for old, new in pairs)
            lines.append((f"{api.schema_name.title().replace('_', '')} ({api.key})", *cells))
    return _table(("API",), lines)


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, behaviours(), _BETWEEN, newest_versions(), _TAIL])


if __name__ == "__main__":
    PAGE.write_text(page())
