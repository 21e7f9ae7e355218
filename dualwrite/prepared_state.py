"""Producer id and epoch of a prepared Kafka transaction, and their exact string form (KIP-939)."""

from __future__ import annotations

import re
from typing import Final

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
MAX_PRODUCER_ID: Final = 2**63 - 1
MAX_PRODUCER_EPOCH: Final = 2**15 - 1

_set: Final = object.__setattr__  # the class itself refuses to be changed

_PAIR: Final = re.compile(r"([0-9]+):([0-9]+)")


class PreparedTxnState:
    """Producer id and epoch of a prepared transaction, as stored in the database next to the data (KIP-939).

    `PreparedTxnState("42:7")` is producer id 42, epoch 7, and `str()` gives the same text back.
    `PreparedTxnState()`, `PreparedTxnState(None)` and `PreparedTxnState("")` mean that nothing is prepared.
    Their `str()` is "".

    Immutable; equal if producer id and epoch are equal; false if empty. A malformed text raises `ValueError`, a value
    that is not a text `TypeError`.
    """

    __slots__ = ("_producer_epoch", "_producer_id")

    _producer_id: int
    _producer_epoch: int

    def __init__(self, text: str | None = None) -> None:
        if text is not None and not isinstance(text, str):
            raise TypeError(f"a prepared transaction state is a text such as '42:7', not {text!r}")
        producer_id, producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        if text:
            pair = _PAIR.fullmatch(text)
            if pair is None:
                raise ValueError(
                    f"{text!r} is not a prepared transaction state: write it as producerId:producerEpoch, like 42:7"
                )
            producer_id, producer_epoch = int(pair[1]), int(pair[2])
            if producer_id > MAX_PRODUCER_ID or producer_epoch > MAX_PRODUCER_EPOCH:
                raise _out_of_range(producer_id, producer_epoch)
        _set(self, "_producer_id", producer_id)
        _set(self, "_producer_epoch", producer_epoch)

    @classmethod
    def of(cls, *, producer_id: int, producer_epoch: int) -> PreparedTxnState:
        """Return the state of this producer id and epoch; (-1, -1) gives the empty one.

        Raises `ValueError` if a number is out of range.
        """
        is_in_range = 0 <= producer_id <= MAX_PRODUCER_ID and 0 <= producer_epoch <= MAX_PRODUCER_EPOCH
        if not is_in_range and (producer_id, producer_epoch) != (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
            raise _out_of_range(producer_id, producer_epoch)
        state = cls.__new__(cls)
        _set(state, "_producer_id", producer_id)
        _set(state, "_producer_epoch", producer_epoch)
        return state

    @property
    def producer_id(self) -> int:
        """Kafka's producer id, or -1 if empty."""
        return self._producer_id

    @property
    def producer_epoch(self) -> int:
        """Kafka's producer epoch, or -1 if empty."""
        return self._producer_epoch

    @property
    def is_empty(self) -> bool:
        """Whether this means that nothing is prepared."""
        return self._producer_id == NO_PRODUCER_ID

    def __bool__(self) -> bool:
        return self._producer_id != NO_PRODUCER_ID

    def __str__(self) -> str:
        return "" if self._producer_id == NO_PRODUCER_ID else f"{self._producer_id}:{self._producer_epoch}"

    def __repr__(self) -> str:
        return f"PreparedTxnState({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PreparedTxnState):
            return NotImplemented
        return self._producer_id == other._producer_id and self._producer_epoch == other._producer_epoch

    def __hash__(self) -> int:
        return hash((self._producer_id, self._producer_epoch))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"PreparedTxnState is immutable; {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"PreparedTxnState is immutable; {name} cannot be deleted")

    def __reduce__(self) -> tuple[type[PreparedTxnState], tuple[str]]:
        return PreparedTxnState, (str(self),)


def _out_of_range(producer_id: int, producer_epoch: int) -> ValueError:
    if not 0 <= producer_id <= MAX_PRODUCER_ID:
        return ValueError(f"the producer id {producer_id} is not between 0 and {MAX_PRODUCER_ID}")
    return ValueError(f"the producer epoch {producer_epoch} is not between 0 and {MAX_PRODUCER_EPOCH}")
