"""confluent-kafka over TLS and SASL, and with access control."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.apache_kafka.secured import LIMITED
from tests.interop.logged_records import values_of
from tests.interop.secured_brokers import (
    LIMITED_LOGIN,
    LOGINS,
    TOKEN_LOGIN,
    WRONG_LOGIN,
    Login,
    SecuredBroker,
    certificates,
    secured,
    secured_topic,
    secured_wire,
    token,
)
from tests.interop.wire import DEADLINE_S, Wire, wait_until

__all__ = ["certificates", "secured", "secured_topic", "secured_wire"]


def send(settings: dict[str, Any], topic: str) -> int | None:
    """Send one record. The code of the first error, if there is one."""
    errors: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            errors.append(error)

    producer = confluent_kafka.Producer({**settings, "error_cb": errors.append, "log_level": 0})
    producer.produce(topic, b"v", on_delivery=delivered)
    deadline_s = time.monotonic() + DEADLINE_S
    while producer.flush(0.05) and not errors:
        assert time.monotonic() < deadline_s
    producer.purge()
    return errors[0].code() if errors else None


@pytest.mark.parametrize("login", [*LOGINS, TOKEN_LOGIN], ids=str)
def test_login(secured: SecuredBroker, secured_wire: Wire, secured_topic: str, login: Login) -> None:
    settings = secured.of_librdkafka(login)
    if login.mechanism == "OAUTHBEARER":
        for name in ("sasl.username", "sasl.password"):
            del settings[name]
        settings["oauth_cb"] = lambda _: (token(), time.time() + 300)
    assert send(settings, secured_topic) is None
    assert values_of(secured_wire, secured_topic) == [b"v"]


def test_wrong_password_is_refused(secured: SecuredBroker, secured_wire: Wire, secured_topic: str) -> None:
    assert send(secured.of_librdkafka(WRONG_LOGIN), secured_topic) == KafkaError._AUTHENTICATION
    assert values_of(secured_wire, secured_topic) == []


def test_rules_allow_and_deny(secured: SecuredBroker, secured_wire: Wire, secured_topic: str) -> None:
    admin = AdminClient(secured.of_librdkafka(LOGINS[-1]))
    limited = secured.of_librdkafka(LIMITED_LOGIN)

    def rule(operation: Any, permission: Any) -> Any:
        literal = ResourcePatternType.LITERAL
        who = f"User:{LIMITED}"
        return AclBinding(ResourceType.TOPIC, secured_topic, literal, who, "*", operation, permission)

    allowed = rule(AclOperation.WRITE, AclPermissionType.ALLOW)
    denied = rule(AclOperation.WRITE, AclPermissionType.DENY)
    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert send(limited, secured_topic) == refused
    admin.create_acls([allowed])[allowed].result(DEADLINE_S)
    wait_until(lambda: send(limited, secured_topic) is None)
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        secured_topic,
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]  # a filter may leave it out
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(wanted).result(DEADLINE_S) == [allowed]
    admin.create_acls([denied])[denied].result(DEADLINE_S)
    wait_until(lambda: send(limited, secured_topic) == refused)
    deleted = admin.delete_acls([wanted])[wanted].result(DEADLINE_S)
    assert {each.permission_type for each in deleted} == {AclPermissionType.ALLOW, AclPermissionType.DENY}
    assert set(values_of(secured_wire, secured_topic)) == {b"v"}


def test_users_are_made_over_the_wire(secured: SecuredBroker, secured_wire: Wire, secured_topic: str) -> None:
    admin = AdminClient(secured.of_librdkafka(LOGINS[-1]))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    name = f"user-of-{secured_topic}"
    made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, info, b"its password")])
    made[name].result(DEADLINE_S)
    descriptions: Any = admin.describe_user_scram_credentials([name])
    described = descriptions[name].result(DEADLINE_S)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    settings = secured.of_librdkafka(LIMITED_LOGIN) | {"sasl.username": name, "sasl.password": "its password"}
    # it may log in, and has no right
    wait_until(lambda: send(settings, secured_topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED)
