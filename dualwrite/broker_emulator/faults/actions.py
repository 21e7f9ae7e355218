"""The actions of faults. A request is "applied" when the broker has carried it out."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Error:
    """Respond with an error in every error field of the response; nothing is applied.

    `code` is a member of kio's `ErrorCode`, or Kafka's number or name of the error.
    """

    code: ErrorCode | int | str


@dataclass(frozen=True, slots=True)
class PartitionError:
    """Respond with an error for the selected topic (and partition) only; the rest is applied as usual.

    `code` as in `Error`.
    """

    code: ErrorCode | int | str


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait, in real time and to about a millisecond, then serve the request as usual.

    A virtual clock of the broker does not affect the delay.
    """

    duration_ms: int


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Do not apply the request, and never respond on this connection again.

    The connection stays open, as on a lost link.
    """


@dataclass(frozen=True, slots=True)
class DropReply:
    """Apply the request, and close the connection instead of responding."""


@dataclass(frozen=True, slots=True)
class CloseBefore:
    """Close the connection instead of applying the request."""


@dataclass(frozen=True, slots=True)
class CloseAfter:
    """Apply the request, respond, then close the connection."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the request, not applied, until it is released; then serve it, even if its client is gone."""


@dataclass(frozen=True, slots=True)
class HoldReply:
    """Apply the request, and hold the response until it is released."""


@dataclass(frozen=True, slots=True)
class CrashBefore:
    """Crash the node that received the request, instead of applying it."""


@dataclass(frozen=True, slots=True)
class CrashAfter:
    """Apply the request, then crash the node instead of responding."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Apply the request, and a copy of it: at once, after a number of further requests, or when it is released.

    The client receives the first response, the handle keeps the second (`unsent`). `after_requests` counts the requests
    that all nodes have applied. A copy that is released late acts as a zombie's request that the network delayed.
    """

    after_requests: int = 0
    on_release: bool = False


@dataclass(frozen=True, slots=True)
class Reorder:
    """Apply the next request that the fault selects before this one.

    The next request may arrive on any connection; the pair counts as one hit. Later requests on the first one's
    connection are served meanwhile; responses keep their order. If no second request arrives, the handle's `release`
    lets the first one proceed.
    """


Action = (
    Error
    | PartitionError
    | Delay
    | DropRequest
    | DropReply
    | CloseBefore
    | CloseAfter
    | Hold
    | HoldReply
    | CrashBefore
    | CrashAfter
    | Duplicate
    | Reorder
)


def error_code(code: ErrorCode | int | str) -> ErrorCode:
    """Return the error code for a member, number or name. Raises ValueError for a code that Kafka does not have."""
    if not isinstance(code, str):
        return ErrorCode(code)
    try:
        return ErrorCode[code.lower()]
    except KeyError:
        raise ValueError(f"Kafka has no error code {code!r}") from None
