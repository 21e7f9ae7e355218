"""Which of this folder's cases must pass, and which are known to fail."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.client_folders import KnownFailure

MUST_PASS: tuple[str, ...] = (
    "administration/cluster",
    "administration/records",
    "administration/settings",
    "administration/topics",
    "records/a_message_that_is_too_large_is_refused",
    "records/compression",
    "records/idempotent_producer",
    "records/keys_headers_and_timestamps",
    "records/large_messages",
    "transaction_admin/abort_of_a_hanging_transaction",
    "transaction_admin/describe_producers",
    "transaction_admin/describe_transactions",
    "transaction_admin/list_transactions",
    "transaction_admin/nothing_hangs",
    "transaction_admin/offsets_by_isolation",
    "transactions/commit_and_abort",
    "transactions/empty_transactions",
    "transactions/many_records_in_compressed_batches",
    "transactions/offsets_of_a_group_without_members",
    "transactions/open_transaction_is_seen_by_uncommitted_readers_only",
    "transactions/reads_what_another_client_wrote",
    "transactions/second_producer_fences_the_first",
    "transactions/transaction_over_many_partitions",
    "transactions/transaction_timeout",
)
"""Only grows."""

KNOWN_FAILURES: Mapping[str, KnownFailure] = {}
