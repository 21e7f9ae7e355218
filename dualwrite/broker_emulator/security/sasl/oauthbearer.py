"""OAUTHBEARER (RFC 7628, KIP-255) with unsigned tokens (RFC 7515, appendix A.5), for tests."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

from dualwrite.broker_emulator.security.sasl.mechanism import SaslAuthenticationError, SaslError, UnsecuredTokens

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIR: Final = r"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
_INITIAL_RESPONSE: Final = re.compile(rf"n,(?:a=(?P<authorization>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01")
_BEARER: Final = re.compile(r"bearer +(?P<token>[-_.a-zA-Z0-9]+)", re.IGNORECASE)
_AFTER_ERROR: Final = b"\x01"
_MAX_SECONDS: Final = 2**53  # exact in a double, and in milliseconds within 64 bits


class IllegalTokenError(Exception):
    """A token is refused; `scope` is the missing scope, if that is the only reason."""

    def __init__(self, reason: str, scope: str | None = None) -> None:
        super().__init__(reason)
        self.scope = scope


class OAuthBearer:
    """A login by token. The token's times are checked by the broker's clock."""

    def __init__(self, rules: UnsecuredTokens, now_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._now_ms = now_ms
        self._error = ""
        self.is_complete = False
        self.authorization_id = ""
        self.expires_ms: int | None = None

    def respond(self, token: bytes) -> bytes:
        """Check a token. Return the reason of a refusal in JSON, and fail once the client has acknowledged it."""
        if token == _AFTER_ERROR and self._error:
            raise SaslAuthenticationError(self._error)
        self._error = ""
        authorization_id, compact = _read_initial_response(token)
        try:
            name, expires_ms = validate(compact, self._rules, self._now_ms())
        except IllegalTokenError as refused:
            self._error = _error_response(refused)
            return self._error.encode()
        if authorization_id not in ("", name):
            raise SaslAuthenticationError(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({name})"
            )
        self.authorization_id, self.expires_ms = name, expires_ms
        self.is_complete = True
        return b""


def validate(compact: str, rules: UnsecuredTokens, now_ms: int) -> tuple[str, int]:
    """Return the principal's name and the token's expiry in milliseconds since 1970. Raises IllegalTokenError."""
    claims = _claims(compact)
    name = claims.get(rules.principal_claim_name)
    if not isinstance(name, str) or not name.strip():
        raise IllegalTokenError(f"no name in the claim {rules.principal_claim_name}")
    issued_s, expires_s = _seconds(claims, "iat"), _seconds(claims, "exp")
    if expires_s is None:
        raise IllegalTokenError("no expiry")
    if issued_s is not None and math.floor(1000 * issued_s) > now_ms + rules.allowable_clock_skew_ms:
        raise IllegalTokenError("issued in the future")
    if now_ms - rules.allowable_clock_skew_ms >= 1000 * expires_s:
        raise IllegalTokenError("expired")
    if issued_s is not None and expires_s <= issued_s:
        raise IllegalTokenError("expires before it is issued")
    required = list(rules.required_scope)
    if not set(required) <= _scopes(claims, rules.scope_claim_name):
        raise IllegalTokenError("a scope is missing", f"[{', '.join(required)}]")
    return name, math.floor(expires_s * 1000 + 0.5)


def _read_initial_response(token: bytes) -> tuple[str, str]:
    """Return the authorization id and the token. Raises SaslError."""
    response = _INITIAL_RESPONSE.fullmatch(token.decode("utf-8", "replace"))
    if response is None:
        raise SaslError("the client's first OAUTHBEARER message is malformed")
    pairs = dict(pair.split("=", 1) for pair in response["pairs"].split("\x01") if pair)
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise SaslError("the client's first OAUTHBEARER message has no bearer token")
    return response["authorization"] or "", bearer["token"]


def _claims(compact: str) -> dict[str, Any]:
    parts = compact.split(".")
    if len(parts) != 3:
        raise IllegalTokenError("not three parts")
    header, claims = _json(parts[0]), _json(parts[1])
    if header.get("alg") != "none" or parts[2]:
        raise IllegalTokenError("signed")
    return claims


def _json(part: str) -> dict[str, Any]:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise IllegalTokenError("not JSON in Base64") from None
    if not isinstance(value, dict):
        raise IllegalTokenError("not a JSON object")
    return value


def _seconds(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX_SECONDS:
        raise IllegalTokenError(f"the claim {name} is not a time")
    return float(value)


def _scopes(claims: dict[str, Any], name: str) -> set[str]:
    value = claims.get(name)
    values = value if isinstance(value, list) else [value]
    return {each.strip() for each in values if isinstance(each, str) and each.strip()}


def _error_response(refused: IllegalTokenError) -> str:
    """Return the error of RFC 7628, 3.2.2, in the bytes that Kafka sends."""
    if refused.scope is None:
        return '{"status":"invalid_token"}'
    return '{"status":"insufficient_scope", "scope":"' + refused.scope + '"}'
