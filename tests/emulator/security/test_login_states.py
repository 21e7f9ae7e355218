"""The tables of a login's states, without a socket."""

from __future__ import annotations

from dualwrite.broker_emulator.security.login import (
    Login,
    Reaction,
    RequestKind,
    State,
)
from dualwrite.broker_emulator.security.sasl.mechanism import Sasl

RIGHT, OTHER = b"\0alice\0secret", b"\0bob\0secret"
USERS = {"alice": "secret", "bob": "secret"}


class Time:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def login(time: Time | None = None, max_reauth_ms: int = 0) -> Login:
    settings = Sasl(mechanisms=["PLAIN", "SCRAM-SHA-256"], plain_users=USERS, connections_max_reauth_ms=max_reauth_ms)
    return Login(settings, lambda user, mechanism: None, time or Time())


def logged_in(time: Time, max_reauth_ms: int) -> Login:
    made = login(time, max_reauth_ms)
    made.shake_hands("PLAIN", 1)
    assert made.respond(RIGHT) == (b"", max_reauth_ms)
    return made


def test_a_session_ends_after_its_last_millisecond() -> None:
    time = Time()
    made = logged_in(time, 5_000)
    time.now_ms += 5_000
    assert made.admit(RequestKind.OTHER) is Reaction.SERVE
    time.now_ms += 1
    assert made.admit(RequestKind.OTHER) is Reaction.CLOSE
    assert made.admit(RequestKind.HANDSHAKE) is Reaction.SERVE
    assert made.state is State.RENEWING
    made.shake_hands("PLAIN", 1)
    assert made.respond(RIGHT) == (b"", 5_000)
    assert made.admit(RequestKind.OTHER) is Reaction.SERVE


def test_a_new_login_once_a_second_at_most() -> None:
    time = Time()
    made = logged_in(time, 5_000)
    for wait_ms, renewed in ((0, True), (999, False), (1, True)):
        time.now_ms += wait_ms
        made.admit(RequestKind.HANDSHAKE)
        assert (made.state is State.RENEWING) == renewed
        if renewed:
            made.shake_hands("PLAIN", 1)
            made.respond(RIGHT)
