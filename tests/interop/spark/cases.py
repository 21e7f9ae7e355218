"""Which of this folder's cases must pass, and which are known to fail."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.client_folders import KnownFailure

MUST_PASS: tuple[str, ...] = (
    "connector/a_batch_query_over_aborted_records_and_an_open_transaction",
    "connector/a_stream_into_sparks_own_sink",
    "connector/from_sparks_own_source_to_this_sink",
)
"""Only grows."""

KNOWN_FAILURES: Mapping[str, KnownFailure] = {}
