"""The login of one connection: its states and the requests served in each (KIP-43, KIP-152, KIP-368).

The login decides by the tables, and passes tokens to the mechanism.
A login expires after its session lifetime. Before or after that, the client logs in again on the same connection. Every
failure ends in FAILED, and the connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from dualwrite.broker_emulator.security.principal import USER, Principal
from dualwrite.broker_emulator.security.sasl.mechanism import (
    OAUTHBEARER,
    PLAIN,
    Mechanism,
    Plain,
    Sasl,
    SaslAuthenticationError,
    SaslError,
)
from dualwrite.broker_emulator.security.sasl.oauthbearer import OAuthBearer
from dualwrite.broker_emulator.security.sasl.scram import Scram, ScramCredential


class State(Enum):
    """The state of the login of one connection; the value is the request that the server expects."""

    EXPECTS_ANYTHING = "ApiVersions or SaslHandshake"
    EXPECTS_HANDSHAKE = "SaslHandshake, after ApiVersions"
    EXPECTS_REQUESTS = "SaslAuthenticate requests"
    EXPECTS_TOKENS = "tokens that are in no request"
    AUTHENTICATED = "anything: it is logged in"
    RENEWING = "SaslHandshake of a new login"
    WRONG_MECHANISM = "nothing: a new login by another mechanism than before fails at the next frame"
    FAILED = "nothing: it has failed, and the connection closes"


class RequestKind(Enum):
    """The kinds of requests that a login distinguishes."""

    VERSIONS = "ApiVersions"
    HANDSHAKE = "SaslHandshake"
    AUTHENTICATE = "SaslAuthenticate"
    OTHER = "anything else"


class Reaction(Enum):
    """The server's reaction to a request."""

    SERVE = "it is served"
    REFUSE = "it is answered with 34 ILLEGAL_SASL_STATE, and the connection closes"
    CLOSE = "the connection closes"
    FAIL = "the connection closes as after a failed login"


class Step(Enum):
    """The steps that change the state of a login."""

    VERSIONS_SENT = "ApiVersions"
    HANDSHAKE = "SaslHandshake v1"
    OLD_HANDSHAKE = "SaslHandshake v0"
    HANDSHAKE_AGAIN = "SaslHandshake, within or after a limited session"
    OTHER_MECHANISM = "SaslHandshake by another mechanism"
    SUCCESS = "the last token is right"
    FAILURE = "failure"


_S, _A, _V = State, RequestKind, Reaction

REACTIONS: Final[dict[State, dict[RequestKind, Reaction]]] = {
    _S.EXPECTS_ANYTHING: {
        _A.VERSIONS: _V.SERVE,
        _A.HANDSHAKE: _V.SERVE,
        _A.AUTHENTICATE: _V.CLOSE,
        _A.OTHER: _V.CLOSE,
    },
    _S.EXPECTS_HANDSHAKE: {
        _A.VERSIONS: _V.CLOSE,
        _A.HANDSHAKE: _V.SERVE,
        _A.AUTHENTICATE: _V.CLOSE,
        _A.OTHER: _V.CLOSE,
    },
    _S.EXPECTS_REQUESTS: {
        _A.VERSIONS: _V.REFUSE,
        _A.HANDSHAKE: _V.REFUSE,
        _A.AUTHENTICATE: _V.SERVE,
        _A.OTHER: _V.REFUSE,
    },
    # every frame is a token here, even one that looks like a request
    _S.EXPECTS_TOKENS: dict.fromkeys(RequestKind, _V.CLOSE),
    # SaslHandshake and SaslAuthenticate get error 34 here, unless the handshake begins a new login
    _S.AUTHENTICATED: dict.fromkeys(RequestKind, _V.SERVE),
    _S.RENEWING: {
        _A.VERSIONS: _V.CLOSE,
        _A.HANDSHAKE: _V.SERVE,
        _A.AUTHENTICATE: _V.CLOSE,
        _A.OTHER: _V.CLOSE,
    },
    _S.WRONG_MECHANISM: dict.fromkeys(RequestKind, _V.FAIL),
    _S.FAILED: dict.fromkeys(RequestKind, _V.CLOSE),
}

NEXT_STATES: Final[dict[State, dict[Step, State]]] = {
    _S.EXPECTS_ANYTHING: {
        Step.VERSIONS_SENT: _S.EXPECTS_HANDSHAKE,
        Step.HANDSHAKE: _S.EXPECTS_REQUESTS,
        Step.OLD_HANDSHAKE: _S.EXPECTS_TOKENS,
        Step.FAILURE: _S.FAILED,
    },
    _S.EXPECTS_HANDSHAKE: {
        Step.HANDSHAKE: _S.EXPECTS_REQUESTS,
        Step.OLD_HANDSHAKE: _S.EXPECTS_TOKENS,
        Step.FAILURE: _S.FAILED,
    },
    _S.EXPECTS_REQUESTS: {Step.SUCCESS: _S.AUTHENTICATED, Step.FAILURE: _S.FAILED},
    _S.EXPECTS_TOKENS: {Step.SUCCESS: _S.AUTHENTICATED, Step.FAILURE: _S.FAILED},
    _S.AUTHENTICATED: {Step.HANDSHAKE_AGAIN: _S.RENEWING},
    _S.RENEWING: {
        Step.HANDSHAKE: _S.EXPECTS_REQUESTS,
        Step.OLD_HANDSHAKE: _S.EXPECTS_TOKENS,
        Step.OTHER_MECHANISM: _S.WRONG_MECHANISM,
        Step.FAILURE: _S.FAILED,
    },
    _S.WRONG_MECHANISM: {Step.FAILURE: _S.FAILED},
    _S.FAILED: {Step.FAILURE: _S.FAILED},
}
"""All transitions; any other is a bug in this package and raises KeyError."""


MIN_RENEWAL_INTERVAL_MS: Final = 1000
"""Kafka accepts a new login on the same connection at most once per second."""


class LoginFailedError(Exception):
    """A login has failed; the message may be sent to the client."""


class Login:
    """The login of one connection: a state machine without I/O and without a clock of its own."""

    def __init__(
        self, settings: Sasl, scram_credential: Callable[[str, str], ScramCredential | None], now_ms: Callable[[], int]
    ) -> None:
        self.settings = settings
        self.state = State.EXPECTS_ANYTHING
        self.principal: Principal | None = None
        """The principal, from the first login on."""
        self.why_failed = ""
        self._scram_credential = scram_credential
        self._now_ms = now_ms
        self._name = ""
        self._mechanism: Mechanism | None = None
        self._expires_ms: int | None = None
        self.renewed_ms: int | None = None

    def admit(self, kind: RequestKind) -> Reaction:
        """Return the reaction to a request that arrives now. A handshake that may begin a new login begins it."""
        if self.state is State.AUTHENTICATED and self._expires_ms is not None:
            if kind is RequestKind.HANDSHAKE and self._may_renew():
                self.renewed_ms = self._now_ms()
                self._move(Step.HANDSHAKE_AGAIN)
            elif self._now_ms() > self._expires_ms:
                return Reaction.CLOSE
        return REACTIONS[self.state][kind]

    def expects(self, kind: RequestKind) -> bool:
        """Return whether this request is a step of the login in progress; a fault may have duplicated it."""
        return self.state is not State.AUTHENTICATED and REACTIONS[self.state][kind] is Reaction.SERVE

    def _may_renew(self) -> bool:
        return self.renewed_ms is None or self._now_ms() - self.renewed_ms >= MIN_RENEWAL_INTERVAL_MS

    def versions_sent(self) -> None:
        """Record that the response to ApiVersions had the versions."""
        if self.state is State.EXPECTS_ANYTHING:  # ApiVersions may come again after the login
            self._move(Step.VERSIONS_SENT)

    def shake_hands(self, mechanism: str, version: int) -> bool:
        """Begin a login by a mechanism. If it is not enabled, fail the login and return False."""
        if mechanism not in self.settings.mechanisms:
            self.fail(f"Unsupported SASL mechanism {mechanism}")
            return False
        if self.principal is not None and mechanism != self._name:
            self._move(Step.OTHER_MECHANISM)
            self.why_failed = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of mechanism "
                f"'{self._name}'"
            )
            return True
        self._name = mechanism
        self._mechanism = self._new_mechanism(mechanism)
        self._move(Step.HANDSHAKE if version >= 1 else Step.OLD_HANDSHAKE)
        return True

    def respond(self, token: bytes) -> tuple[bytes, int]:
        """Return the response to a token, and the session lifetime in ms: 0 if unlimited, or if the login continues.

        Raises LoginFailedError if the login has failed.
        """
        mechanism = self._mechanism
        assert mechanism is not None
        try:
            response = mechanism.respond(token)
        except SaslAuthenticationError as error:
            raise self.fail(str(error)) from None
        except SaslError:
            what = "authentication" if self.principal is None else "re-authentication"
            why = f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self._name}"
            raise self.fail(why) from None
        return response, self._complete(mechanism) if mechanism.is_complete else 0

    def _complete(self, mechanism: Mechanism) -> int:
        """Complete the login, and return the session lifetime in ms, 0 if unlimited."""
        principal = Principal(USER, mechanism.authorization_id)
        before = self.principal
        if before not in (None, principal):
            assert before is not None
            raise self.fail(
                f"Cannot change principals during re-authentication from {before.type}.{before.name}: "
                f"{principal.type}.{principal.name}"
            )
        self.principal = principal
        self._move(Step.SUCCESS)
        self._mechanism = None
        lifetime_ms = self._lifetime_ms(mechanism.expires_ms)
        self._expires_ms = None if lifetime_ms is None else self._now_ms() + lifetime_ms
        return lifetime_ms or 0

    def _lifetime_ms(self, credential_expires_ms: int | None) -> int | None:
        """Return the lifetime of the session that begins now; None for the lifetime of the connection."""
        limits = [limit for limit in (self.settings.max_reauth_ms(self._name),) if limit > 0]
        if credential_expires_ms is not None:
            limits.append(credential_expires_ms - self._now_ms())
        return max(min(limits), 0) if limits else None

    def fail(self, why: str) -> LoginFailedError:
        """Move to FAILED, and return the error for callers that raise it."""
        self._move(Step.FAILURE)
        self.why_failed = why
        return LoginFailedError(why)

    def _move(self, step: Step) -> None:
        self.state = NEXT_STATES[self.state][step]

    def _new_mechanism(self, name: str) -> Mechanism:
        if name == PLAIN:
            return Plain(self.settings.plain_users)
        if name == OAUTHBEARER:
            return OAuthBearer(self.settings.unsecured_tokens, self._now_ms)
        return Scram(name, lambda user: self._scram_credential(user, name))
