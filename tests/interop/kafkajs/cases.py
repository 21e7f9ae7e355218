"""Which of this folder's cases must pass, and which are known to fail."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.client_folders import KnownFailure

MUST_PASS: tuple[str, ...] = (
    "administration/cluster",
    "administration/groups",
    "administration/offsets_and_records",
    "administration/settings",
    "administration/topics",
    "killed_broker/copy_while_the_broker_is_killed_is_exactly_once",
    "records/acks",
    "records/compression",
    "records/idempotent_producer",
    "records/keys_headers_and_timestamps",
    "records/large_messages",
    "records/members_share_partitions",
    "records/reads_what_was_committed",
    "records/tombstones",
    "security/login",
    "security/rules",
    "security/who_may_not_write_is_refused",
    "security/wrong_password_is_refused",
    "transactions/commit_and_abort",
    "transactions/copy_with_aborts_is_exactly_once",
    "transactions/offsets_in_transactions",
    "transactions/open_transaction_is_seen_by_uncommitted_readers",
    "transactions/second_producer_fences_the_first",
)
"""Only grows."""

KNOWN_FAILURES: Mapping[str, KnownFailure] = {}
