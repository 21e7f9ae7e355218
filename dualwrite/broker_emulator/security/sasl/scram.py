"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): mutual proof of a password without sending it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from dualwrite.broker_emulator.security.sasl.mechanism import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    SaslAuthenticationError,
    SaslError,
)

HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE: Final = r"[\x01-\x2b\x2d-\x7f]+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_NAME}))?,"
    rf"(?P<bare>(?:m={_VALUE},)?n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c={_BASE64},r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The stored form of a password: enough to verify a login, not enough to log in elsewhere."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_salted_password(cls, mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> Self:
        """Return the credential of a salted password, as clients send it in AlterUserScramCredentials."""
        name = HASHES[mechanism]
        client_key = hmac.digest(salted_password, b"Client Key", name)
        server_key = hmac.digest(salted_password, b"Server Key", name)
        return cls(salt, hashlib.new(name, client_key).digest(), server_key, iterations)

    @classmethod
    def of_password(cls, mechanism: str, password: str, iterations: int = MIN_ITERATIONS) -> Self:
        """Return the credential of a password, with a new salt."""
        salt = secrets.token_bytes(24)
        salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
        return cls.of_salted_password(mechanism, salted, salt, iterations)


def new_nonce() -> str:
    """Return the server's part of a nonce."""
    return secrets.token_urlsafe(24)


class Scram:
    """A login by challenge and response. `credential_of` returns the credential of a user, None for an unknown user."""

    expires_ms = None

    def __init__(
        self,
        mechanism: str,
        credential_of: Callable[[str], ScramCredential | None],
        nonce: Callable[[], str] = new_nonce,
    ) -> None:
        self._hash = HASHES[mechanism]
        self._credential_of = credential_of
        self._new_nonce = nonce
        self._credential: ScramCredential | None = None
        self._nonce = ""
        self._messages = ""
        """The first messages of client and server, which both sides sign."""
        self.is_complete = False
        self.authorization_id = ""

    def respond(self, token: bytes) -> bytes:
        """Process the client's first message, and then its final one."""
        message = token.decode("utf-8", "replace")
        return (self._challenge(message) if self._credential is None else self._verify(message)).encode()

    def _challenge(self, message: str) -> str:
        first = _CLIENT_FIRST.fullmatch(message)
        if first is None:
            raise SaslError("the client's first SCRAM message is malformed")
        name = first["name"].replace("=2C", ",").replace("=3D", "=")
        credential = self._credential_of(name)
        if credential is None:
            raise SaslError("the user has no credential for this mechanism")
        if first["authorization"] not in (None, name):
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._credential = credential
        self.authorization_id = name
        self._nonce = first["nonce"] + self._new_nonce()
        salt = base64.b64encode(credential.salt).decode()
        challenge = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._messages = f"{first['bare']},{challenge}"
        return challenge

    def _verify(self, message: str) -> str:
        final = _CLIENT_FINAL.fullmatch(message)
        if final is None:
            raise SaslError("the client's final SCRAM message is malformed")
        if not hmac.compare_digest(final["nonce"].encode(), self._nonce.encode()):
            raise SaslError("the nonce is not the server's")
        credential = self._credential
        assert credential is not None
        signed = f"{self._messages},{final['without_proof']}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        proof = base64.b64decode(final["proof"])
        if len(proof) != len(signature):
            raise SaslError("the proof does not have the length of the hash")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key):
            raise SaslError("the proof was made with another password")
        self.is_complete = True
        return "v=" + base64.b64encode(hmac.digest(credential.server_key, signed, self._hash)).decode()
