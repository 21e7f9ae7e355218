"""Errors with the codes of the registry's REST API. The first three digits of a code are the HTTP status.

The effort of a decision is limited by its comparisons: counted, not timed, so that it is the same on every machine.
"""

from __future__ import annotations

from typing import Final

DENIED: Final = 40301
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
NO_SUBJECT_LEVEL: Final = 40408
NO_SUBJECT_MODE: Final = 40409
INCOMPATIBLE_SCHEMA: Final = 40901
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
INVALID_LEVEL: Final = 42203
INVALID_MODE: Final = 42204
NOT_PERMITTED: Final = 42205
REFERENCE_EXISTS: Final = 42206
INVALID_SUBJECT: Final = 42208
TOO_LARGE: Final = 42209
INVALID_RULE_SET: Final = 42210
STORE_FAILED: Final = 50001


class RegistryError(Exception):
    """A request that is refused; nothing was changed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(str(self.code)[:3])


class InvalidSchemaError(RegistryError):
    """A schema that cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_SCHEMA, message)


class UndecidedError(RegistryError):
    """Two schemas that this registry cannot compare; it does not guess."""

    def __init__(self, message: str) -> None:
        super().__init__(
            NOT_PERMITTED,
            f"this registry does not decide whether the schemas are compatible: {message}. Nothing was registered. Set "
            "the subject's compatibility to NONE to register the schema unchecked",
        )


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
