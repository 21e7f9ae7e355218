"""Which of this folder's cases must pass, and which are known to fail."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.client_folders import Fault, KnownFailure, On

MUST_PASS: tuple[str, ...] = (
    "administration/groups",
    "administration/settings",
    "administration/topics",
    "records/compression",
    "records/keys_headers_and_timestamps",
    "records/large_messages",
    "records/members_share_partitions",
    "records/reads_a_partition_without_a_group",
)
"""Only grows."""

KNOWN_FAILURES: Mapping[str, KnownFailure] = {
    "records/reads_what_was_committed": KnownFailure(
        (On.EMULATOR, On.APACHE_KAFKA),
        Fault.CLIENT,
        "its isolation level limits how far the broker reads, and what was aborted, and the markers, are not left out",
    ),
}
