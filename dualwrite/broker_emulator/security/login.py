"""The login of one connection: decides by the tables of `login_states.py`, and passes tokens to the mechanism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

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
