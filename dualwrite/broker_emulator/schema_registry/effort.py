"""A limit on the comparisons of a decision: counted, not timed, so that it is the same on every machine."""

from __future__ import annotations

from typing import Final

from dualwrite.broker_emulator.schema_registry.errors import TOO_LARGE, RegistryError

MAX_OF_PAIR: Final = 200_000
"""Types that may be compared for two schemas: some tenths of a second."""
MAX_OF_DECISION: Final = 1_000_000
"""Types that may be compared for one schema with all earlier versions."""


class Effort:
    """The comparisons of one decision."""

    def __init__(self) -> None:
        self._of_pair = 0
        self._of_decision = 0

    def begin_pair(self) -> None:
        """Begin to compare two schemas."""
        self._of_pair = 0

    def spend(self, types: int = 1) -> None:
        """Count compared types. Raises RegistryError if there are too many."""
        self._of_pair += types
        self._of_decision += types
        if self._of_pair > MAX_OF_PAIR:
            raise RegistryError(TOO_LARGE, f"the schemas are too large: more than {MAX_OF_PAIR} types to compare")
        if self._of_decision > MAX_OF_DECISION:
            raise RegistryError(
                TOO_LARGE,
                f"the earlier versions are too large: more than {MAX_OF_DECISION} types to compare; nothing was "
                "registered: delete versions, or set a compatibility of the subject that is not transitive",
            )
