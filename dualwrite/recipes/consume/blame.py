"""Whether a dual write failed because of the records that it was made of, or because of something else."""

from __future__ import annotations

from typing import Final

from dualwrite.errors import (
    AbortableError,
    DualWriteError,
    InvalidRecordError,
    RowLockTimeoutError,
    TransactionTooLargeError,
)
from dualwrite.recipes.sqlalchemy.database_trouble import is_database_trouble

# What a broker says about the records that it was sent.
_ABOUT_RECORDS: Final = frozenset(
    {
        10,  # MESSAGE_TOO_LARGE
        18,  # RECORD_LIST_TOO_LARGE
        87,  # INVALID_RECORD
    }
)


def blames_records(error: Exception) -> bool:
    """Whether the same records would fail again when everything else is well.

    Trouble of the database, of Kafka or of the network in between would refuse any record.
    """
    if is_database_trouble(error):
        return False
    if isinstance(error, DualWriteError):
        refused = isinstance(error, AbortableError) and error.error_code in _ABOUT_RECORDS
        return refused or isinstance(error, InvalidRecordError | TransactionTooLargeError)
    return True


def may_pass(error: BaseException) -> bool:
    """Whether it is trouble of the database that may be over soon, and nothing was decided."""
    if isinstance(error, DualWriteError):
        return isinstance(error, RowLockTimeoutError)
    return is_database_trouble(error)
