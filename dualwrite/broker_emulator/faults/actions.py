"""What a fault can do to a request. "Applied" means that the broker did what the request asks for."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Error:
    """Answer with an error everywhere the response has room for it; nothing is applied.

    `code` is a member of kio's `ErrorCode`, or Kafka's number or name of the error.
    """

    code: ErrorCode | int | str


@dataclass(frozen=True, slots=True)
class PartitionError:
    """Answer an error for the selected topic (and partition) only; the rest is applied and answered.

    `code` as in `Error`.
    """

    code: ErrorCode | int | str


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait, in real time, then serve the request as usual.

    The time is that of the event loop, not of the broker's clock.
    """

    duration_ms: int


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Do not apply the request, and never answer on this connection again.

    The connection stays open, as on a lost link.
    """


@dataclass(frozen=True, slots=True)
class DropReply:
    """Apply the request, close the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class CloseBefore:
    """Close the connection instead of applying the request."""


@dataclass(frozen=True, slots=True)
class CloseAfter:
    """Apply the request, answer it, then close the connection."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the request, not applied, until it is released; then serve it, even if its client is gone."""


@dataclass(frozen=True, slots=True)
class HoldReply:
    """Apply the request, keep the answer until it is released."""


@dataclass(frozen=True, slots=True)
class CrashBefore:
    """Crash the node that got the request instead of applying it."""


@dataclass(frozen=True, slots=True)
class CrashAfter:
    """Apply the request, then crash the node instead of answering."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Apply the request twice: at once, after that many more requests, or when it is released.

    The client sees the first answer, the handle keeps the second (`unsent`). `after_requests` counts requests that any
    node has applied; a copy that is released later is a zombie that was long on its way.
    """

    after_requests: int = 0
    on_release: bool = False


@dataclass(frozen=True, slots=True)
class Reorder:
    """Apply the next request that the fault selects before this one.

    The next one may arrive on any connection. A hit is a pair. Requests behind the first one on its connection are
    served meanwhile; answers keep their order. Where no second one comes, the handle's release lets the first go.
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
    """The code that `code` means. Raises ValueError for a number or name that Kafka does not have."""
    if not isinstance(code, str):
        return ErrorCode(code)
    try:
        return ErrorCode[code.lower()]
    except KeyError:
        raise ValueError(f"Kafka has no error code {code!r}") from None
