"""franz-go over TLS and SASL, and with access control."""

from __future__ import annotations

import pytest

from tests.interop.case_program import CaseError, CaseProgram
from tests.interop.logged_records import values_of
from tests.interop.secured_brokers import (
    LIMITED_LOGIN,
    LOGINS,
    WRONG_LOGIN,
    Login,
    SecuredBroker,
    certificates,
    secured,
    secured_topic,
    secured_wire,
)
from tests.interop.wire import Wire

__all__ = ["certificates", "secured", "secured_topic", "secured_wire"]

EVERYDAY = LOGINS[-1]


def send(program: CaseProgram, secured: SecuredBroker, login: Login, topic: str) -> None:
    security = secured.of_programs(login)
    program.run("produce", servers=secured.servers(login), security=security, topic=topic, values=["v"])


@pytest.mark.parametrize(
    "login", [each if each == EVERYDAY else pytest.param(each, marks=pytest.mark.matrix) for each in LOGINS], ids=str
)
def test_login(
    program: CaseProgram, secured: SecuredBroker, secured_wire: Wire, secured_topic: str, login: Login
) -> None:
    send(program, secured, login, secured_topic)
    assert values_of(secured_wire, secured_topic) == [b"v"]


def test_wrong_password_is_refused(
    program: CaseProgram, secured: SecuredBroker, secured_wire: Wire, secured_topic: str
) -> None:
    with pytest.raises(CaseError) as caught:
        send(program, secured, WRONG_LOGIN, secured_topic)
    assert "SASL" in str(caught.value)
    assert values_of(secured_wire, secured_topic) == []


def test_who_may_not_write_is_refused(
    program: CaseProgram, secured: SecuredBroker, secured_wire: Wire, secured_topic: str
) -> None:
    with pytest.raises(CaseError) as caught:
        send(program, secured, LIMITED_LOGIN, secured_topic)
    assert caught.value.name == "TOPIC_AUTHORIZATION_FAILED"
    assert values_of(secured_wire, secured_topic) == []
