"""The login of one connection: decides by the tables of `login_states.py`, and passes tokens to their mechanism."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from dualwrite.broker_emulator.security.login_states import NEXT_STATES, REACTIONS, Reaction, RequestKind, State, Step
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
from dualwrite.broker_emulator.security.tls import Tls

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
        """Return how to react to a request that arrives now; a handshake that may begin a new login begins it."""
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
        """Record that ApiVersions was answered with the versions."""
        if self.state is State.EXPECTS_ANYTHING:  # ApiVersions may come again after the login
            self._move(Step.VERSIONS_SENT)

    def shake_hands(self, mechanism: str, version: int) -> bool:
        """Begin a login by a mechanism. Return False, with the login failed, if it is not enabled."""
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
        """Return the response to a token, and the session lifetime in ms: 0 if unlimited, or if the login goes on.

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
        """Return the lifetime of the session that begins now; None: as long as the connection."""
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


MAX_PORT: Final = 65535
UNROUTABLE: Final = ("0.0.0.0", "::")


class SecurityProtocol(StrEnum):
    """Kafka's security protocols: with or without TLS, with or without a SASL login."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @classmethod
    def of(cls, *, tls: bool, sasl: bool) -> Self:
        """Return the protocol with these parts."""
        return cls(("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT") if sasl or tls else "PLAINTEXT")


class Endpoint(NamedTuple):
    """The advertised address of a broker."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """host:port, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener, which every node has: node n (counted from 0) binds `port` + n, or a free port if `port` is 0.

    `tls` and `sasl` determine the security protocol; without both it is PLAINTEXT. The advertised host and port (+ n,
    too) default to the bound ones. An empty host binds every interface and advertises this machine's host name. Raises
    ValueError for an impossible name or port.
    """

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0
    tls: Tls | None = None
    sasl: Sasl | None = None
    advertised_host: str | None = None
    advertised_port: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a listener needs a name")
        for port in (self.port, self.advertised_port or 0):
            if not 0 <= port <= MAX_PORT:
                raise ValueError(f"listener {self.name}: a port must be a number from 0 to {MAX_PORT}, not {port}")

    @property
    def protocol(self) -> SecurityProtocol:
        """The security protocol."""
        return SecurityProtocol.of(tls=self.tls is not None, sasl=self.sasl is not None)

    def port_of(self, place: int) -> int:
        """Return the port that the node at this place binds; 0: any free port."""
        return self.port + place if self.port else 0

    def advertised(self, place: int, bound_port: int) -> Endpoint:
        """Return the advertised address of the node at this place, whose listener is bound to `bound_port`."""
        port = self.advertised_port + place if self.advertised_port else bound_port
        return Endpoint(self.advertised_host or self.host or socket.gethostname(), port)


def check_listeners(listeners: list[Listener], nodes: int) -> None:
    """Raise ValueError if these listeners conflict on one node, or the ports of the nodes overlap."""
    names = [listener.name for listener in listeners]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a node needs one or more listeners with different names, not {', '.join(names) or 'none'}")
    taken: dict[int, str] = {}
    for listener in listeners:
        for port in {listener.port_of(place) for place in range(nodes)} - {0}:
            if port > MAX_PORT:
                raise ValueError(
                    f"listener {listener.name}: {nodes} nodes from port {listener.port} on need ports beyond {MAX_PORT}"
                )
            other = taken.setdefault(port, listener.name)
            if other != listener.name:
                raise ValueError(
                    f"the listeners {other} and {listener.name} both need port {port}: each of {nodes} nodes takes the "
                    "next port, so leave that many between two listeners"
                )
