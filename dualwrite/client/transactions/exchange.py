"""The request in flight between the transaction manager and a broker, and when the next one may be sent."""

from __future__ import annotations

from dualwrite.client import messages as m
from dualwrite.client.backoff import Backoff
from dualwrite.client.transactions.initialisation import Step


class Exchange:
    """The manager's exchange with the brokers, one request at a time.

    Invariant: there is at most one request in flight, and none is sent before `retry_at_ms`. A request that got no
    response, or a retriable error, is followed by the same request.
    """

    __slots__ = ("backoff", "init_unanswered", "request", "retry_at_ms", "step")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.request: m.Request | None = None
        """The request in flight."""
        self.step: Step | None = None
        """The step of taking the id over that the request in flight carries out, if it is one."""
        self.retry_at_ms = 0.0
        """When the next request may be sent; 0.0: at once."""
        self.init_unanswered = False
        """Whether an InitProducerId went without a response: it may arrive late, and fence this producer itself."""

    @property
    def commit_in_flight(self) -> bool:
        """Whether the request in flight is EndTxn(commit)."""
        return isinstance(self.request, m.EndTxn) and self.request.committed

    def end(self) -> tuple[m.Request | None, Step | None]:
        """Return the request in flight and its step; from now on there is none."""
        request, step = self.request, self.step
        self.request = self.step = None
        return request, step

    def retry_later(self, now_ms: float, error_code: int | None = None) -> None:
        """Wait for the back-off before the next request."""
        self.retry_at_ms = now_ms + self.backoff.failed(error_code)

    def restart(self) -> None:
        """Forget the back-off: a new call of the application is not delayed by failures of an earlier one."""
        self.backoff.succeeded()
        self.retry_at_ms = 0.0
