"""A response that cannot be read. The rest of its connection cannot be trusted, so the connection is closed."""

from __future__ import annotations

from dualwrite.errors import Api


class MalformedResponseError(ConnectionError):
    """The request was answered with bytes that are not Kafka's: it may have been carried out, as without a response."""

    def __init__(self, api: Api, version: int, size: int, cause: Exception) -> None:
        reason = str(cause) or type(cause).__name__
        super().__init__(f"the response to {api.kafka_name} v{version}, of {size} bytes, is malformed ({reason})")
