"""Verification guards: a transactional append must be the one that was verified (KIP-890 part 1, KAFKA-14884)."""

from __future__ import annotations

from typing import ClassVar


class VerificationGuard:
    """What an append presents to show that it was verified; equal to nothing but itself."""

    SENTINEL: ClassVar[VerificationGuard]
    """Handed out where nothing has to be verified; it verifies nothing."""
