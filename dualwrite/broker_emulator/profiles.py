"""The profiles: the Kafka versions to imitate, as a table with one row for each behaviour that differs.

A row is a field of `Behaviours`, with its value in each profile. Code reads a behaviour from `config.behaviours` by
name and compares no profiles. `api/registry.py` has the API versions of each profile. docs/profiles.md shows both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple


class Profile(StrEnum):
    """The behaviour to imitate. KIP_939 is everything that the KIPs specify, to the letter.

    REDPANDA is as far as its source tells (commit 1c6cff34, December 2024), and the rest of it is as KAFKA_3_9.
    """

    KIP_939 = "kip-939"
    KIP_939_PR_21735 = "kip-939-pr-21735"
    KIP_939_PR_22704 = "kip-939-pr-22704"
    KAFKA_4_4 = "kafka-4.4"
    KAFKA_4_3 = "kafka-4.3"
    KAFKA_3_9 = "kafka-3.9"
    REDPANDA = "redpanda"

    @classmethod
    def _missing_(cls, value: object) -> Profile | None:
        return cls.KAFKA_3_9 if value == AUTOMQ else None


AUTOMQ: Final = "automq"
"""Another name of KAFKA_3_9: AutoMQ (commit f1ce98ec, August 2026) has the requests and the coordinator of Apache Kafka
3.9, and its own storage, of which no difference to a client is known."""

NAMES: Final = (*map(str, Profile), AUTOMQ)
"""Each name that a setting may have."""


NEWEST_RELEASE: Final = Profile.KAFKA_4_4
"""The default of the command and of the pytest plugin: what works on it works on a Kafka that exists."""


class KeepPrepared(StrEnum):
    """The effect of InitProducerId with KeepPreparedTxn on an open transaction (KIP-939)."""

    SECOND_PAIR = "the client gets a second pair"
    SAME_PAIR = "the client gets the pair of the transaction"
    REFUSED = "35"


class LateCommit(StrEnum):
    """The error of a commit by EndTxn v5 whose transaction the server has aborted."""

    PRODUCER_FENCED = "90"
    INVALID_TXN_STATE = "48"


class Settings(StrEnum):
    """The release whose settings exist, with their defaults and limits."""

    KAFKA_4_4 = "those of 4.4"
    KAFKA_3_9 = "those of 3.9"


class Row(NamedTuple):
    """One behaviour: its description, the source of the decision or observation, and its value in each profile."""

    what: str
    source: str
    values: Mapping[Profile, Any]


PULL_REQUESTS: Final = (Profile.KIP_939_PR_21735, Profile.KIP_939_PR_22704)
"""Kafka's open pull requests for KIP-939. Behaviours that they do not change are those of Kafka 4.4."""
BEFORE_4_4: Final = (Profile.KAFKA_4_3, Profile.KAFKA_3_9)
RELEASES: Final = (Profile.KAFKA_4_4, *BEFORE_4_4)

_ROW: Final = "row"


def _row(what: str, source: str, value: object, *, but: Mapping[Profile, object] | None = None) -> Any:
    """Return a field of `Behaviours` with `value` in all profiles `but` these; REDPANDA is as KAFKA_3_9."""
    values = dict.fromkeys(Profile, value) | dict(but or {})
    if not but or Profile.REDPANDA not in but:
        values[Profile.REDPANDA] = values[Profile.KAFKA_3_9]
    return field(metadata={_ROW: Row(what, source, values)})


def _not_in_3_9(what: str, source: str) -> Any:
    return _row(what, source, True, but={Profile.KAFKA_3_9: False})


def _of_kip_939(what: str, source: str) -> Any:
    """Return the row of a behaviour of Kafka's trunk or of a KIP that is in no release; pull requests count as 4.4."""
    return _row(what, source, True, but=dict.fromkeys((*PULL_REQUESTS, *RELEASES), False))


def _not_in_redpanda(what: str, source: str) -> Any:
    return _row(what, f"Redpanda: {source}", True, but={Profile.REDPANDA: False})


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviours:
    """The behaviours of one profile."""

    # --- two-phase commit ------------------------------------------------------------------------------------------

    keep_prepared: KeepPrepared = _row(  # noqa: RUF009 - a field
        "InitProducerId with KeepPreparedTxn while a transaction is open",
        "KIP-939; KAFKA-15370 (#21735) and KAFKA-20739 (#22704), both open; observed: 4.3.1, 4.4.0",
        KeepPrepared.REFUSED,
        but={
            Profile.KIP_939: KeepPrepared.SECOND_PAIR,
            Profile.KIP_939_PR_21735: KeepPrepared.SECOND_PAIR,
            Profile.KIP_939_PR_22704: KeepPrepared.SAME_PAIR,
        },
    )
    keep_prepared_needs_2pc: bool = _row(
        "KeepPreparedTxn without Enable2Pc is 42, and transactions that have a timeout are not kept",
        "#22704; by KIP-939 and #21735 neither matters",
        False,
        but={Profile.KIP_939_PR_22704: True},
    )
    keep_prepared_needs_transaction_version_2: bool = _row(
        "KeepPreparedTxn is 35 below `transaction.version` 2",
        "#21735 has such a branch, whose error could not be read; nothing was found of it in #22704",
        True,
        but={Profile.KIP_939_PR_22704: False},
    )
    keep_prepared_excludes_expected_pair: bool = _row(
        "KeepPreparedTxn together with an expected producer id and epoch is 42",
        "#21735; nothing was found of it in #22704",
        True,
        but={Profile.KIP_939_PR_22704: False},
    )
    recovering_client_reaches_last_epoch: bool = _row(
        "the second pair's epoch goes up to 32767 before its producer id is replaced, else to 32766",
        "KIP-939's example; #21735, whose tests let no client have 32767",
        True,
        but={Profile.KIP_939_PR_21735: False},
    )
    completes_with_client_as_previous: bool = _row(
        "the previous producer id of a kept transaction that is complete is the client's, else the transaction's own, "
        "with which a retried EndTxn is not recognised after two replacements of the producer id",
        "KIP-939; the tests of #21735 assert the other one",
        True,
        but={Profile.KIP_939_PR_21735: False},
    )
    has_two_phase_commit_acl: bool = _not_in_3_9("the ACL operation TWO_PHASE_COMMIT exists", "KIP-939, KAFKA-19364")

    # --- transactions ----------------------------------------------------------------------------------------------

    has_features: bool = _not_in_3_9(
        "the features `transaction.version` and `group.version` exist; without them they are at level 0",
        "KIP-890, KIP-848, KIP-1022",
    )
    late_commit: LateCommit = _row(  # noqa: RUF009 - a field
        "a commit by EndTxn v5 after the server's abort",
        "KAFKA-20785; observed: 4.4.0 is without it",
        LateCommit.INVALID_TXN_STATE,
        but={Profile.KIP_939: LateCommit.PRODUCER_FENCED},
    )
    pending_checked_before_identity: bool = _not_in_3_9(
        "adding partitions looks for a pending transition (51) before it looks at the producer", "KAFKA-18660"
    )
    init_forgets_start_time: bool = _not_in_3_9(
        "InitProducerId forgets when the id's last transaction began; DescribeTransactions then says -1",
        "observed: 3.9.2, 4.4.0",
    )
    logs_last_epoch: bool = _of_kip_939(
        "`__transaction_state` holds the epoch before the last bump; without it, a retry of EndTxn is recognised by "
        "its epoch being one behind, and a retry of InitProducerId not by the next coordinator",
        "KAFKA-20357; observed: 4.4.0 is without it",
    )
    logs_next_epoch: bool = _row(
        "`__transaction_state` holds the epoch of a second pair",
        "KIP-939 (tag 3 of the value); written by #21735",
        False,
        but={Profile.KIP_939: True, Profile.KIP_939_PR_21735: True},
    )
    unwritable_record_wedges: bool = _row(
        "an id is pending for ever (51, until its coordinator moves) after a request of transaction version 2 on a "
        "cluster at level 0, whose log has no format for it",
        "observed: 4.3.1",
        True,
        but={Profile.KIP_939: False},
    )
    exhausted_init_retry_fails: bool = _row(
        "a stale epoch in InitProducerId is -1 where the current epoch is the last one, instead of 90 or the same pair",
        "KIP-360; observed: 4.4.0 throws",
        True,
        but={Profile.KIP_939: False},
    )
    transaction_open_for_one_epoch: bool = _not_in_3_9(
        "in a partition a transaction is open for its own epoch only, an epoch that is over is 47 before the "
        "coordinator is asked, and a deletion into a transaction keeps the last stable offset at the start of a batch",
        "KAFKA-18575, KAFKA-19690; observed: 4.4.0",
    )

    init_fences_before_it_aborts: bool = _not_in_redpanda(
        "InitProducerId fences the producer of an open transaction before it aborts it; without it, the abort has the "
        "producer's epoch, and the repetition of the request fences",
        "`do_init_tm_tx` in cluster/tx_gateway_frontend.cc",
    )
    knows_producer_fenced: bool = _not_in_redpanda(
        "a fenced producer gets 90 in requests whose version has it, else 47", "`map_tx_errc` in kafka/server/errors.h"
    )
    stores_start_time: bool = _not_in_redpanda(
        "DescribeTransactions says when the transaction began, else when it changed last",
        "kafka/server/handlers/describe_transactions.cc",
    )

    # --- groups ----------------------------------------------------------------------------------------------------

    offsets_have_topic_ids: bool = _not_in_3_9("records of committed offsets have the topic's id", "KIP-848")
    assignments_outlast_generations: bool = _not_in_3_9(
        "DescribeGroups shows the members' last assignment while a classic group rebalances", "observed: 4.4.0"
    )
    unused_groups_are_logged: bool = _not_in_3_9(
        "a group without a generation has records: one when its first member joins, a tombstone when it goes",
        "KIP-848; observed: 3.9.2, 4.4.0",
    )
    unknown_group_has_own_error: bool = _not_in_3_9(
        "a generation of an unknown group is 69 in OffsetCommit from v9 on, else 22",
        "KIP-848; observed: 3.9.2, 4.4.0",
    )
    groups_begin_with_a_commit: bool = _not_in_3_9(
        "a TxnOffsetCommit that is refused makes no group; without it, the group is there before the transaction is "
        "verified, so that a generation of an unknown group is 25, instead of 69 in v6 and 22 before",
        "KIP-848, KIP-1319; observed: 3.9.2, 4.4.0",
    )
    groups_outlast_their_offsets: bool = _not_in_3_9(
        "an empty group stays when its last offset is deleted; without it, the group goes, and so do all that are "
        "empty and have none when a topic is deleted or offsets expire",
        "KIP-848; observed: 3.9.2, 4.4.0",
    )
    pending_offsets_have_tombstones: bool = _not_in_3_9(
        "offsets that are deleted while they are pending in a transaction have a tombstone, as others have",
        "KIP-848; observed: 3.9.2, 4.4.0",
    )
    malformed_subscriptions_are_refused: bool = _row(
        "JoinGroup with a subscription that cannot be read is 23 in a group of KIP-848, instead of -1",
        "KAFKA-20662; observed: 4.3.1, 4.4.0",
        True,
        but=dict.fromkeys(BEFORE_4_4, False),
    )

    # --- reading ---------------------------------------------------------------------------------------------------

    refused_partitions_have_records: bool = _not_in_3_9(
        "where Fetch fails as a whole, the records of its partitions are empty; without it, they are null",
        "KAFKA-18646; observed: 3.9.2, 4.4.0",
    )
    isolation_level_checked_first: bool = _not_in_3_9(
        "ListOffsets with an unknown isolation level is -1 for all partitions; without it, access (29) and the "
        "timestamp (35) are looked at before",
        "observed: 3.9.2, 4.4.0",
    )

    # --- administration --------------------------------------------------------------------------------------------

    settings: Settings = _row(  # noqa: RUF009 - a field
        "the settings of brokers and topics, and their defaults",
        "the documentation of each release",
        Settings.KAFKA_4_4,
        but={Profile.KAFKA_3_9: Settings.KAFKA_3_9},
    )
    groups_have_settings: bool = _not_in_3_9(
        "settings of groups can be described and altered (else 42), and so are two operations on groups in ACLs",
        "KIP-848",
    )
    client_metrics_show_defaults: bool = _not_in_3_9(
        "DescribeConfigs of client metrics shows settings that were not altered", "observed: 3.9.2, 4.4.0"
    )
    features_change_together: bool = _not_in_3_9(
        "UpdateFeatures with one wrong update changes nothing, and answers with one error", "KIP-1022"
    )


def rows() -> Iterator[tuple[str, Row]]:
    """Return the table: the name of each behaviour with its row."""
    return ((member.name, member.metadata[_ROW]) for member in fields(Behaviours))


@cache
def behaviours_of(profile: Profile) -> Behaviours:
    """Return a profile's column of the table."""
    return Behaviours(**{name: row.values[profile] for name, row in rows()})
