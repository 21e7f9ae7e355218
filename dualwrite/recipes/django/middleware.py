"""The response to a dual write that was refused: 503, and when the client may repeat its request.

MIDDLEWARE = [..., "dualwrite.recipes.django.middleware.RetryLaterMiddleware"]
"""

from __future__ import annotations

import logging

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from dualwrite.errors import DualWriteError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.judge import Concerns, refusal_of

_log = logging.getLogger(__name__)


class RetryLaterMiddleware(MiddlewareMixin):
    """Responds with 503 and Retry-After if a dual write was refused, neither side is changed, and another may succeed.

    For example: Kafka is away, the store is full, no transactional id became free. All other errors remain Django's
    500. A client must not repeat a request whose outcome is unknown, or whose database side is committed
    (`OutcomeUnknown`, `PreparedTransactionLost`), and it is of no use after an error of the program or of the record.

    It knows nothing of other transactions of the request: a view with several must bear repetition, or handle the
    error itself.
    """

    retry_after_s = 1
    """The value of Retry-After; a subclass may have another one."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Return the response to an exception of a view; None for Django's."""
        if not may_be_repeated(exception):
            return None
        _log.warning("a request may be repeated, because its dual write was refused", exc_info=exception)
        return HttpResponse(
            "A dual write was refused, and changed neither the database nor Kafka. Please repeat the request later.",
            status=503,
            content_type="text/plain",
            headers={"Retry-After": str(self.retry_after_s)},
        )


def may_be_repeated(error: BaseException) -> bool:
    """Return whether an error left a dual write that changed nothing, for a cause that lies outside of the block."""
    return (
        isinstance(error, DualWriteError)
        and error.outcome is Outcome.ROLLED_BACK
        and refusal_of(error).concerns is not Concerns.BLOCK
    )
