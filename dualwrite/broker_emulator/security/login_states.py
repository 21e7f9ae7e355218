"""The states of the login of a connection: the requests that are served, and the steps (KIP-43, KIP-152, KIP-368).

A login expires after its session lifetime. Before or after that, the client logs in again on the same connection. Every
failure ends in FAILED, and the connection is closed.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


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
