"""One connection whose login is written by hand, and a transcript of what the broker does: for any broker.

SCRAM is kafka-python's here, so that our own reading of it is not checked by itself.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from kafka.net.sasl.scram import ScramClient

from tests.emulator.api.raw_client import RawClient, request_parts

CLOSED = "closed"
GOOD, WRONG = "password-of-the-worker", "password-of-nobody"
USER, OTHER = "worker", "limited"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def plain_token(user: str = USER, password: str = GOOD, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{user}\0{password}".encode()


def unsigned_token(
    now_s: float, claims: Mapping[str, Any] | None = None, header: Mapping[str, Any] | None = None
) -> str:
    """A token that is good for five minutes, but for what `claims` say; None takes a claim away."""
    all_claims = {"sub": USER, "iat": now_s, "exp": now_s + 300} | dict(claims or {})
    part = {name: value for name, value in all_claims.items() if value is not None}
    return f"{_encoded(header or {'alg': 'none'})}.{_encoded(part)}."


def _encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def bearer(token: str, authorization_id: str = "") -> bytes:
    name = f"a={authorization_id}" if authorization_id else ""
    return f"n,{name},\x01auth=Bearer {token}\x01\x01".encode()


class LoginScript:
    """Says what it sends, and keeps one line for each answer."""

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
        """The only message of OAUTHBEARER, with a token by the broker's time."""
        return bearer(unsigned_token(self._now_s(), claims, header), authorization_id)

    def versions(self, version: int = 3, software: str = "raw") -> None:
        fields = {"client_software_name": software, "client_software_version": "1"}
        self._note("ApiVersions", self._call("api_versions", version, **fields))

    def unknown_versions(self) -> None:
        """ApiVersions of a version that nobody has."""
        self._client.send_bytes(struct.pack(">ihhihb", 11, 18, 99, 1, -1, 0))
        self._frame("ApiVersions v99")

    def handshake(self, mechanism: str, version: int = 1) -> None:
        answer = self._call("sasl_handshake", version, mechanism=mechanism)
        self._note("SaslHandshake", answer, "" if answer is None else f" of {len(answer.mechanisms)} mechanisms")

    def token(self, token: bytes, version: int = 2) -> bytes:
        """SaslAuthenticate; gives the broker's token."""
        answer = self._call("sasl_authenticate", version, auth_bytes=token)
        if answer is None or int(answer.error_code):
            self._note("SaslAuthenticate", answer, "" if answer is None else f" {answer.error_message}")
            return b""
        lifetime_ms = round(answer.session_lifetime.total_seconds() * 1000) if version else 0
        session = "" if lifetime_ms == 0 else f" for {round(lifetime_ms / 1000)} s"
        self._note("SaslAuthenticate", answer, f" {shape(answer.auth_bytes)}{session}")
        return bytes(answer.auth_bytes)

    def bare_token(self, token: bytes) -> bytes:
        """A frame that is a token and nothing else."""
        self._client.send_bytes(struct.pack(">i", len(token)) + token)
        return self._frame("token")

    def scram(self, mechanism: str, user: str = USER, password: str = GOOD, *, bare: bool = False) -> None:
        """Both messages of SCRAM; what the server proves is checked."""
        client = ScramClient(user, password, mechanism)
        send = self.bare_token if bare else self.token
        challenge = send(client.first_message())
        if challenge:
            client.process_server_first_message(challenge)
            proof = send(client.final_message())
            if proof:
                client.process_server_final_message(proof)

    def metadata(self) -> None:
        """What only who has logged in may ask."""
        fields = {"topics": (), "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        self._note("Metadata", self._call("metadata", 13, **fields))

    def raw(self, data: bytes, what: str) -> None:
        """A frame of these bytes."""
        self._client.send_bytes(struct.pack(">i", len(data)) + data)
        self._frame(what)

    def session_ends(self) -> None:
        """The time is over for which a login is good at the listener BRIEF."""
        self._end_session()

    def ends(self) -> None:
        """The broker closes the connection now."""
        try:
            self.transcript.append(CLOSED if self._client.is_closed() else "still open")
        except TimeoutError:
            self.transcript.append("still open")

    def stays(self) -> None:
        """The broker does not close the connection."""
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
    """A token without what is another one every time."""
    if token.startswith(b"r="):
        return "challenge"
    if token.startswith(b"v="):
        return "proof"
    if token[:1] == b"{":
        return token.decode()
    return "nothing" if not token else f"{len(token)} bytes"


def alter_scram(client: RawClient, deletions: list[tuple[str, int]], upsertions: list[tuple[str, int, int]]) -> Any:
    """AlterUserScramCredentials: `(error, message)` by user. Each is a name and a mechanism, and maybe iterations."""
    parts = request_parts("alter_user_scram_credentials", 0)
    keys = {"salt": b"salt", "salted_password": b"p" * 32}
    response = client.call(
        "alter_user_scram_credentials",
        0,
        deletions=tuple(parts.ScramCredentialDeletion(name=name, mechanism=number) for name, number in deletions),
        upsertions=tuple(
            parts.ScramCredentialUpsertion(name=name, mechanism=number, iterations=iterations, **keys)
            for name, number, iterations in upsertions
        ),
    )
    return {row.user: (int(row.error_code), row.error_message) for row in response.results}


def describe_scram(client: RawClient, *names: str) -> Any:
    """DescribeUserScramCredentials: `(error, message, [(mechanism, iterations)])` by user; no name: all users."""
    parts = request_parts("describe_user_scram_credentials", 0)
    users = tuple(parts.UserName(name=name) for name in names) or None
    response = client.call("describe_user_scram_credentials", 0, users=users)
    return {
        row.user: (
            int(row.error_code),
            row.error_message,
            sorted((info.mechanism, info.iterations) for info in row.credential_infos),
        )
        for row in response.results
    }
