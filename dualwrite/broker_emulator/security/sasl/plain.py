"""PLAIN (RFC 4616): name and password in clear text."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from dualwrite.broker_emulator.security.sasl.mechanism import SaslAuthenticationError

_PARTS = 3


class Plain:
    """A login by name and password."""

    expires_ms = None

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.is_complete = False
        self.authorization_id = ""

    def respond(self, token: bytes) -> bytes:
        """Check authorization id, name and password, which the token separates by zero bytes."""
        parts = token.decode("utf-8", "replace").split("\0", _PARTS)
        if len(parts) != _PARTS:
            raise SaslAuthenticationError(f"Invalid SASL/PLAIN response: expected {_PARTS} tokens, got {len(parts)}")
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
        """Return whether the password is right; compare for unknown names too, so that the time reveals no names."""
        expected = self._users.get(name)
        is_equal = hmac.compare_digest(password.encode(), (expected if expected is not None else "\0").encode())
        return is_equal and expected is not None
