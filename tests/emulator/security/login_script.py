"""One connection whose login is written by hand, with a transcript of the broker's reactions, for any broker.

SCRAM is kafka-python's here, so that our own reading of it is not checked by itself.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from kafka.net.sasl.scram import ScramClient

from tests.emulator.api.raw_client import RawClient

CLOSED = "closed"
GOOD, WRONG = "password-of-the-worker", "password-of-nobody"
USER, OTHER = "worker", "limited"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def plain_token(user: str = USER, password: str = GOOD, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{user}\0{password}".encode()


def unsigned_token(
    now_s: float, claims: Mapping[str, Any] | None = None, header: Mapping[str, Any] | None = None
) -> str:
    """Return a token that is valid for five minutes, with `claims` replaced; None removes a claim."""
    all_claims = {"sub": USER, "iat": now_s, "exp": now_s + 300} | dict(claims or {})
    part = {name: value for name, value in all_claims.items() if value is not None}
    return f"{_encoded(header or {'alg': 'none'})}.{_encoded(part)}."


def _encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def bearer(token: str, authorization_id: str = "") -> bytes:
    name = f"a={authorization_id}" if authorization_id else ""
    return f"n,{name},\x01auth=Bearer {token}\x01\x01".encode()


class LoginScript:
    """Sends requests, and keeps one line for each response."""

    def __init__(self, client: RawClient, now_s: Callable[[], float], end_session: Callable[[], None]) -> None:
        self._client = client
        self._now_s = now_s
        self._end_session = end_session
        self.transcript: list[str] = []

    def bearer(
        self,
        claims: Mapping[str, Any] | None = None,
        header: Mapping[str, Any] | None = None,
        authorization_id: str = "",
    ) -> bytes:
        """Return the only message of OAUTHBEARER, with a token by the broker's time."""
        return bearer(unsigned_token(self._now_s(), claims, header), authorization_id)

    def versions(self, version: int = 3, software: str = "raw") -> None:
        fields = {"client_software_name": software, "client_software_version": "1"}
        self._note("ApiVersions", self._call("api_versions", version, **fields))

    def unknown_versions(self) -> None:
        """Send ApiVersions in a version that does not exist."""
        self._client.send_bytes(struct.pack(">ihhihb", 11, 18, 99, 1, -1, 0))
        self._frame("ApiVersions v99")

    def handshake(self, mechanism: str, version: int = 1) -> None:
        answer = self._call("sasl_handshake", version, mechanism=mechanism)
        self._note("SaslHandshake", answer, "" if answer is None else f" of {len(answer.mechanisms)} mechanisms")

    def token(self, token: bytes, version: int = 2) -> bytes:
        """Send SaslAuthenticate, and return the broker's token."""
        answer = self._call("sasl_authenticate", version, auth_bytes=token)
        if answer is None or int(answer.error_code):
            self._note("SaslAuthenticate", answer, "" if answer is None else f" {answer.error_message}")
            return b""
        lifetime_ms = round(answer.session_lifetime.total_seconds() * 1000) if version else 0
        session = "" if lifetime_ms == 0 else f" for {round(lifetime_ms / 1000)} s"
        self._note("SaslAuthenticate", answer, f" {shape(answer.auth_bytes)}{session}")
        return bytes(answer.auth_bytes)

    def bare_token(self, token: bytes) -> bytes:
        """Send a frame that is only a token."""
        self._client.send_bytes(struct.pack(">i", len(token)) + token)
        return self._frame("token")

    def scram(self, mechanism: str, user: str = USER, password: str = GOOD, *, bare: bool = False) -> None:
        """Send both messages of SCRAM, and check the server's proof."""
        client = ScramClient(user, password, mechanism)
        send = self.bare_token if bare else self.token
        challenge = send(client.first_message())
        if challenge:
            client.process_server_first_message(challenge)
            proof = send(client.final_message())
            if proof:
                client.process_server_final_message(proof)

    def metadata(self) -> None:
        """Send a request that needs a login."""
        fields = {"topics": (), "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        self._note("Metadata", self._call("metadata", 13, **fields))

    def raw(self, data: bytes, what: str) -> None:
        """Send a frame of these bytes."""
        self._client.send_bytes(struct.pack(">i", len(data)) + data)
        self._frame(what)

    def session_ends(self) -> None:
        """Let the session lifetime of the listener BRIEF expire."""
        self._end_session()

    def ends(self) -> None:
        """Record whether the broker closes the connection."""
        try:
            self.transcript.append(CLOSED if self._client.is_closed() else "still open")
        except TimeoutError:
            self.transcript.append("still open")

    def stays(self) -> None:
        """Record whether the broker leaves the connection open."""
        self.transcript.append("open" if self._client.is_silent(0.02) else CLOSED)

    def _call(self, api: str, version: int, **fields: Any) -> Any:
        try:
            return self._client.call(api, version, **fields)
        except (ConnectionError, BrokenPipeError):
            return None

    def _frame(self, what: str) -> bytes:
        try:
            answer = self._client.receive_frame()
        except ConnectionError:
            self.transcript.append(f"{what}: {CLOSED}")
            return b""
        self.transcript.append(f"{what}: {shape(answer)}")
        return answer

    def _note(self, what: str, answer: Any, more: str = "") -> None:
        said = CLOSED if answer is None else f"{int(answer.error_code)}{more}"
        self.transcript.append(f"{what}: {said}")


def shape(token: bytes) -> str:
    """Return a token without its random parts."""
    if token.startswith(b"r="):
        return "challenge"
    if token.startswith(b"v="):
        return "proof"
    if token[:1] == b"{":
        return token.decode()
    return "nothing" if not token else f"{len(token)} bytes"


def alter_scram(client: RawClient, deletions: list[tuple[str, int]], upsertions: list[tuple[str, int, int]]) -> Any:
    """Send AlterUserScramCredentials; return `(error, message)` by user.

    Each element is a name and a mechanism, and possibly iterations.
    """
    keys = {"salt": b"salt", "salted_password": b"p" * 32}
    response = client.call(
        "alter_user_scram_credentials",
        0,
        deletions=tuple({"name": name, "mechanism": number} for name, number in deletions),
        upsertions=tuple(
            {"name": name, "mechanism": number, "iterations": iterations, **keys}
            for name, number, iterations in upsertions
        ),
    )
    return {row.user: (int(row.error_code), row.error_message) for row in response.results}


def describe_scram(client: RawClient, *names: str) -> Any:
    """Send DescribeUserScramCredentials; return `(error, message, [(mechanism, iterations)])` by user.

    Without a name all users are described.
    """
    users = tuple({"name": name} for name in names) or None
    response = client.call("describe_user_scram_credentials", 0, users=users)
    return {
        row.user: (
            int(row.error_code),
            row.error_message,
            sorted((info.mechanism, info.iterations) for info in row.credential_infos),
        )
        for row in response.results
    }
