"""Which of this folder's cases must pass, and which are known to fail."""

from __future__ import annotations

from collections.abc import Mapping

from tests.interop.client_folders import KnownFailure

MUST_PASS: tuple[str, ...] = ()
"""Only grows."""

KNOWN_FAILURES: Mapping[str, KnownFailure] = {}
