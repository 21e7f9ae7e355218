"""The SASL mechanisms of a listener: their names and settings, the protocol that each implements, and PLAIN."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
_PLAIN_PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredTokens:
    """The rules for OAUTHBEARER's unsigned tokens, which are for tests (KIP-255).

    Named after the options of Kafka's OAuthBearerUnsecuredValidatorCallbackHandler, without their prefix.
    """

    principal_claim_name: str = "sub"
    scope_claim_name: str = "scope"
    required_scope: Sequence[str] = ()
    """The scopes that a token must have."""
    allowable_clock_skew_ms: int = 0

    def __post_init__(self) -> None:
        if self.allowable_clock_skew_ms < 0:
            raise ValueError(
                f"unsecuredValidatorAllowableClockSkewMs must be at least 0, not {self.allowable_clock_skew_ms}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """The mechanisms of a listener, with the users of PLAIN and the token rules of OAUTHBEARER.

    SCRAM users belong to the cluster (`Emulator.set_scram_user`, AlterUserScramCredentials). Raises ValueError for an
    unsupported mechanism.
    """

    mechanisms: Sequence[str]
    plain_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords by name."""
    unsecured_tokens: UnsecuredTokens = field(default_factory=UnsecuredTokens)
    connections_max_reauth_ms: int | Mapping[str, int] = 0
    """The session lifetime in ms (KIP-368), for all mechanisms or for each; 0 for the lifetime of the connection."""

    def __post_init__(self) -> None:
        if not self.mechanisms:
            raise ValueError("a listener with SASL needs a mechanism (sasl.enabled.mechanisms)")
        for mechanism in self.mechanisms:
            if mechanism not in MECHANISMS:
                raise ValueError(
                    f"the SASL mechanism {mechanism} is not supported; supported are {', '.join(MECHANISMS)}"
                )

    def max_reauth_ms(self, mechanism: str) -> int:
        """Return the session lifetime of this mechanism in ms; 0 for the lifetime of the connection."""
        limit = self.connections_max_reauth_ms
        return limit if isinstance(limit, int) else limit.get(mechanism, 0)


class SaslError(Exception):
    """A failed login. The client does not get the reason, but Kafka's uniform message, which reveals nothing."""


class SaslAuthenticationError(Exception):
    """A failed login. The client gets the message, as from Kafka."""


class Mechanism(Protocol):
    """One login by one mechanism: takes the client's tokens in turn, and returns the server's."""

    @property
    def is_complete(self) -> bool:
        """Whether the login has succeeded and no more tokens are expected."""

    @property
    def authorization_id(self) -> str:
        """The name of the logged-in user; valid once the login is complete."""

    @property
    def expires_ms(self) -> int | None:
        """The expiry of the client's credential, in milliseconds since 1970; None for never."""

    def respond(self, token: bytes) -> bytes:
        """Return the response to the client's next token. Raises SaslError or SaslAuthenticationError."""


class Plain:
    """A login by PLAIN (RFC 4616): name and password in clear text."""

    expires_ms = None

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.is_complete = False
        self.authorization_id = ""

    def respond(self, token: bytes) -> bytes:
        """Check authorization id, name and password, which the token separates by zero bytes."""
        parts = token.decode("utf-8", "replace").split("\0", _PLAIN_PARTS)
        if len(parts) != _PLAIN_PARTS:
            raise SaslAuthenticationError(
                f"Invalid SASL/PLAIN response: expected {_PLAIN_PARTS} tokens, got {len(parts)}"
            )
        authorization_id, name, password = parts
        if not name:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        if not self._is_right(name, password):
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id not in ("", name):
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.authorization_id = name
        self.is_complete = True
        return b""

    def _is_right(self, name: str, password: str) -> bool:
        """Return whether the password is right. Unknown names are compared too, so that the time reveals no names."""
        expected = self._users.get(name)
        is_equal = hmac.compare_digest(password.encode(), (expected if expected is not None else "\0").encode())
        return is_equal and expected is not None
