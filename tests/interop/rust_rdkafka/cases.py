"""Which of this folder's cases must pass, and which are known to fail."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.client_folders import KnownFailure

MUST_PASS: tuple[str, ...] = (
    "records/compression",
    "records/keys_headers_and_timestamps",
    "records/large_messages",
    "records/members_share_partitions",
    "records/reads_what_was_committed",
    "transactions/commit_and_abort",
    "transactions/offsets_in_transactions",
    "transactions/second_producer_fences_the_first",
)
"""Only grows."""

KNOWN_FAILURES: Mapping[str, KnownFailure] = {}
