"""What every mechanism of SASL has in common on the server's side."""

from __future__ import annotations

from typing import Protocol


class SaslError(Exception):
    """A login that fails for a reason that is not told: Kafka has one sentence for all, which gives nothing away."""


class SaslAuthenticationError(Exception):
    """A login that fails; the message is what the client is told, as by Kafka."""


class Mechanism(Protocol):
    """One login by one mechanism: takes the client's tokens in turn, and gives the server's."""

    @property
    def is_complete(self) -> bool:
        """Whether the login has succeeded and no more tokens are expected."""

    @property
    def authorization_id(self) -> str:
        """Who has logged in; of use once it is complete."""

    @property
    def expires_ms(self) -> int | None:
        """When what the client has shown ends to be good, in milliseconds since 1970; None: never."""

    def respond(self, token: bytes) -> bytes:
        """The answer to the client's next token. Raises SaslError or SaslAuthenticationError."""
