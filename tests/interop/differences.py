"""Known differences between the emulator and a real Apache Kafka, each with the reason, in one place.

A comparison in a test of its own has its table beside that test, which fails when the difference is gone; the tables
are put together here. docs/internals/interop.md shows all of them. Differences between releases of Kafka are not here:
the emulator has profiles for them (`BrokerConfig.profile`). Settings with another default:
docs/emulator-settings.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.emulator.security.login_cases import DIFFERENCES as OF_LOGINS

from .raw_wire.config_cases import EMULATED_DIFFERENTLY as OF_CONFIGS
from .raw_wire.test_access import EMULATED_DIFFERENTLY as OF_ACCESS
from .raw_wire.test_consumer_groups import DIFFERENCES as OF_CONSUMER_GROUPS
from .raw_wire.test_share_groups import DIFFERENCES as OF_SHARE_GROUPS

OF_THE_CLUSTER: Final[Mapping[str, str]] = {
    "replication": (
        "there is one log for each partition, which all of its copies share: followers do not fetch, and lag only "
        "where a test holds them back"
    ),
    "CreatePartitions of an internal topic": "42; Kafka adds them, and breaks",
    "deleting an internal topic": "42; Kafka deletes it, with the state of its coordinators",
    "records for internal topics, produced as `__admin_client`": (
        "87 for a record that a coordinator could not read; Kafka accepts it, and its next coordinator fails on it"
    ),
    "Produce with one partition twice": "both batches are appended; Kafka takes the last, and answers once",
    "AddPartitionsToTxn of a broker without transactions": "no results; Kafka does not answer",
    "WriteTxnMarkers whose last marker has no partition that is there, or one partition twice": (
        "an answer; Kafka writes the markers and does not answer"
    ),
    "transactions of one id in AddPartitionsToTxn": (
        "the connection is closed if they repeat more partitions than `max.request.elements`; Kafka has no limit"
    ),
    "Produce with null in place of records": "87; Kafka fails, and does not answer",
    "a reassignment that another one replaces": (
        "replicas are removed only if the new target lacks them; Kafka 4.4 goes on to remove those of the first, too"
    ),
    "lists of all topics": "internal topics exist from the start, so these have them",
    "fetch sessions (KIP-227)": "declined, as by a Kafka whose cache of sessions is full: every Fetch is a full one. "
    "Clients go on without: sending all partitions costs less in a test than a cache for each client",
    "DescribeQuorum": "there is no quorum; its offset is the epoch of the features",
    "EndTxn": "its markers are written before it is answered where nothing is in their way; in Kafka, afterwards",
    "a group whose first commit has no valid offset": (
        "it is described at once; Kafka does so after the next record in its partition of `__consumer_offsets`"
    ),
    "JoinGroup with metadata that has fewer topics than it says": (
        "an answer; Kafka 3.9 fails when the last member has joined, and does not answer"
    ),
    "topics and partitions of AddPartitionsToTxn": "as in the request; Kafka's order is that of its hash tables",
    "transactions of several clients, verified at once": (
        "each gets the errors of its own version of Produce; Kafka asks its coordinator once for all of them, and "
        "translates the errors as the first one's version wants"
    ),
}
"""Differences without a table beside a test. Literal, and only here."""


def _sections() -> dict[str, dict[str, str]]:
    return {
        "The cluster": dict(OF_THE_CLUSTER),
        "Answers to changes of settings": {name: otherwise.reason for name, otherwise in OF_CONFIGS.items()},
        "Logins": {name: difference.reason for name, difference in OF_LOGINS.items()},
        "Access": {f"{request} with {rules}": reason for (request, rules), reason in OF_ACCESS.items()},
        "Consumer groups of KIP-848": dict(OF_CONSUMER_GROUPS),
        "Share groups": dict(OF_SHARE_GROUPS),
    }


DIFFERENCES: Final = _sections()
"""By subject: the difference, and its reason or form."""


def as_tables() -> str:
    """The tables for the page: `python -m tests.interop.differences`."""
    lines: list[str] = []
    for title, rows in DIFFERENCES.items():
        lines += [f"### {title}", "", "| subject | the emulator, and why |", "|---|---|"]
        lines += [f"| {what} | {why} |" for what, why in rows.items()] + [""]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    print(as_tables())
