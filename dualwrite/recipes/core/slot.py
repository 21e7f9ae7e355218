"""The states of one transactional id inside one process, as a table.

A slot is one transactional id as its process knows it. It never decides an outcome; the state row does. It only
determines which calls are allowed now, and whether the id must be taken over (initialised with `keep_prepared_txn`,
then completed by the row) before its next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from dualwrite.errors import IllegalStateError
from dualwrite.prepared_state import PreparedTxnState

if TYPE_CHECKING:
    from dualwrite.recipes.core.buffer import BufferedRecord


class SlotState(StrEnum):
    """The states of a transactional id, as its process knows them."""

    __hash__ = str.__hash__  # Enum.__hash__ is written in Python, and slower than the look-ups that call it

    NEW = "new"
    """No producer of this process has the id, or its producer was abandoned: take over before use."""
    READY = "ready"
    """This process's producer has the id and nothing is open."""
    OPEN = "open"
    """The row is locked and a dual write is running."""
    DECIDING = "deciding"
    """Kafka is prepared; the database commit is about to be sent, or was sent."""
    IN_DOUBT = "in-doubt"
    """The database committed; Kafka has not confirmed, or the records are owed. The next take-over completes it."""
    UNRESOLVED = "unresolved"
    """The database commit was sent, its response was lost, and the row could not be read yet."""
    FENCED = "fenced"
    """Another process has taken the id over."""
    CLOSED = "closed"


_S = SlotState

TRANSITIONS: MappingProxyType[SlotState, frozenset[SlotState]] = MappingProxyType(
    {
        _S.NEW: frozenset({_S.READY, _S.UNRESOLVED, _S.FENCED, _S.CLOSED}),
        _S.READY: frozenset({_S.OPEN, _S.NEW, _S.CLOSED}),
        _S.OPEN: frozenset({_S.READY, _S.DECIDING, _S.NEW, _S.IN_DOUBT, _S.FENCED, _S.CLOSED}),
        _S.DECIDING: frozenset({_S.READY, _S.NEW, _S.IN_DOUBT, _S.UNRESOLVED, _S.FENCED, _S.CLOSED}),
        _S.IN_DOUBT: frozenset({_S.READY, _S.UNRESOLVED, _S.FENCED, _S.CLOSED}),
        _S.UNRESOLVED: frozenset({_S.READY, _S.NEW, _S.IN_DOUBT, _S.FENCED, _S.CLOSED}),
        _S.FENCED: frozenset({_S.CLOSED}),
        _S.CLOSED: frozenset(),
    }
)


class Known(NamedTuple):
    """A state, and the facts that it vouches for. They change together."""

    state: SlotState = SlotState.NEW
    row: PreparedTxnState = PreparedTxnState()
    """The content of the state row as far as this process knows; the database verifies it before every use."""
    in_doubt: PreparedTxnState = PreparedTxnState()
    """The dual write that the database committed and whose Kafka commit is not confirmed."""
    owed: Sequence[BufferedRecord] = ()
    """Records of the transaction in the row that Kafka aborted: the next transaction of the id begins with them."""


class Slot:
    """One transactional id as this process knows it; only `move` and `note` change it.

    A change is one assignment, so an exception at any point, such as one from a signal handler, finds all of it or
    nothing. `moved` is called after it.
    """

    __slots__ = ("_moved", "_transactional_id", "known")

    def __init__(self, transactional_id: str, moved: Callable[[SlotState], None] | None = None) -> None:
        self._transactional_id = transactional_id
        self._moved = moved
        self.known = Known()

    @property
    def state(self) -> SlotState:
        return self.known.state

    def move(
        self,
        to: SlotState,
        *,
        row: PreparedTxnState | None = None,
        in_doubt: PreparedTxnState | None = None,
        owed: Sequence[BufferedRecord] | None = None,
    ) -> None:
        """Change the state with its facts; others stay. Raises IllegalStateError for a transition not in the table."""
        known = self.known
        if to not in TRANSITIONS[known.state]:
            raise IllegalStateError(f"transactional id {self._transactional_id!r} cannot go from {known.state} to {to}")
        self.known = Known(
            to,
            known.row if row is None else row,
            known.in_doubt if in_doubt is None else in_doubt,
            known.owed if owed is None else owed,
        )
        if self._moved is not None:
            self._moved(to)

    def note(self, *, in_doubt: PreparedTxnState | None = None, owed: Sequence[BufferedRecord] | None = None) -> None:
        """Change facts that the present state does not vouch for."""
        known = self.known
        self.known = Known(
            known.state,
            known.row,
            known.in_doubt if in_doubt is None else in_doubt,
            known.owed if owed is None else owed,
        )
