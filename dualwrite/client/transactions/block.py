"""What leaving a `with producer.transaction():` block by an exception does, by the producer's state. Pure.

What nothing else knows of is aborted. What may be decided already, by a database or at the coordinator, is left alone:
to abort it would be a guess.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dualwrite.client.transactions.states import ProducerState


class Leaving(NamedTuple):
    """Whether to abort, and what the exception is to say of the transaction besides itself."""

    abort: bool
    note: str | None = None


_S = ProducerState
_ABORT: Final = Leaving(abort=True)
_NOTHING_OPEN: Final = Leaving(abort=False)

LEAVING: Final[dict[ProducerState, Leaving]] = {
    _S.UNINITIALIZED: _NOTHING_OPEN,
    _S.INITIALIZING: _NOTHING_OPEN,
    _S.READY: _NOTHING_OPEN,
    _S.IN_TRANSACTION: _ABORT,
    _S.ABORTABLE_ERROR: _ABORT,
    _S.ABORTING_TRANSACTION: _ABORT,
    _S.PREPARED_TRANSACTION: Leaving(
        abort=False,
        note="the transaction stays prepared, because the decision may have been stored: call complete_transaction() "
        "with the state that the database holds",
    ),
    _S.COMMITTING_TRANSACTION: Leaving(
        abort=False,
        note="the commit has no outcome yet and may still take effect: repeat the call that commits until it returns; "
        "it joins the commit that is under way",
    ),
    _S.FATAL_ERROR: _NOTHING_OPEN,
    _S.CLOSED: _NOTHING_OPEN,
}


def not_aborted(error: BaseException) -> str:
    """A note for the exception that left the block, when the abort did not succeed."""
    return f"the transaction could not be aborted: {error}"
