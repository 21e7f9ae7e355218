"""Which of this folder's cases must pass, and which are known to fail."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.client_folders import KnownFailure

MUST_PASS: tuple[str, ...] = (
    "administration/cluster",
    "administration/groups",
    "administration/log_directories",
    "administration/quotas",
    "administration/records",
    "administration/settings",
    "administration/topics",
    "killed_broker/copy_while_the_broker_is_killed_is_exactly_once",
    "records/compression",
    "records/fetch_sessions",
    "records/idempotent_producer",
    "records/keys_headers_and_timestamps",
    "records/large_messages",
    "records/members_share_partitions",
    "records/reads_what_was_committed",
    "records/reads_without_a_group",
    "security/login",
    "security/who_may_not_write_is_refused",
    "security/wrong_password_is_refused",
    "transactions/commit_and_abort",
    "transactions/copy_with_aborts_is_exactly_once",
    "transactions/offsets_in_transactions",
    "transactions/second_producer_fences_the_first",
    "transactions/state_of_an_open_transaction",
)
"""Only grows."""

KNOWN_FAILURES: Mapping[str, KnownFailure] = {}
