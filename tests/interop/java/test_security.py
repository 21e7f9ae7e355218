"""Kafka's tools over TLS and SASL, and kafka-acls on a broker with access control."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apache_kafka.secured import LIMITED
from tests.interop.java.client import JavaTools, KafkaScripts
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
from tests.interop.wire import Wire, wait_until

__all__ = ["certificates", "secured", "secured_topic", "secured_wire"]


def settings_file(directory: Path, secured: SecuredBroker, login: Login) -> str:
    path = directory / "client.properties"
    settings = secured.of_java(login) | {"max.block.ms": "15000"}
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def send(java: JavaTools, secured: SecuredBroker, login: Login, topic: str, directory: Path) -> str:
    """Send one record with the console producer. Return its output."""
    scripts = KafkaScripts(java, secured.servers(login))
    options = ["--topic", topic, "--command-config", settings_file(directory, secured, login)]
    ended = scripts.run("kafka-console-producer", *options, stdin="v\n")
    return ended.out + ended.err


@pytest.mark.parametrize("login", LOGINS, ids=str)
def test_login(
    java: JavaTools, secured: SecuredBroker, secured_wire: Wire, secured_topic: str, login: Login, tmp_path: Path
) -> None:
    said = send(java, secured, login, secured_topic, tmp_path)
    assert values_of(secured_wire, secured_topic) == [b"v"], said


def test_wrong_password_is_refused(java: JavaTools, secured: SecuredBroker, secured_topic: str, tmp_path: Path) -> None:
    scripts = KafkaScripts(java, secured.servers(WRONG_LOGIN))
    options = ["--list", "--command-config", settings_file(tmp_path, secured, WRONG_LOGIN)]
    ended = scripts.run("kafka-topics", *options)
    assert ended.exit_status == 1
    assert "Authentication failed during authentication due to invalid credentials" in ended.out + ended.err


def test_rules_allow_and_deny(
    java: JavaTools, secured: SecuredBroker, secured_wire: Wire, secured_topic: str, tmp_path: Path
) -> None:
    scripts = KafkaScripts(java, secured.bootstrap_servers)

    def written() -> int:
        send(java, secured, LIMITED_LOGIN, secured_topic, tmp_path)
        return len(values_of(secured_wire, secured_topic))

    rule = ["--topic", secured_topic, "--operation", "Write"]
    assert written() == 0
    scripts.ok("kafka-acls", "--add", "--allow-principal", f"User:{LIMITED}", *rule)
    wait_until(lambda: written() == 1)
    listed = scripts.ok("kafka-acls", "--list", "--topic", secured_topic)
    assert f"(principal=User:{LIMITED}, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    scripts.ok("kafka-acls", "--add", "--deny-principal", f"User:{LIMITED}", *rule)
    before = written()
    assert written() == before
    scripts.ok("kafka-acls", "--remove", "--topic", secured_topic, "--force")
    assert "permissionType" not in scripts.ok("kafka-acls", "--list", "--topic", secured_topic)


def test_users_of_scram(java: JavaTools, secured: SecuredBroker, secured_topic: str) -> None:
    scripts = KafkaScripts(java, secured.bootstrap_servers)
    entity = ["--entity-type", "users", "--entity-name", f"user-of-{secured_topic}"]
    scripts.ok("kafka-configs", "--alter", *entity, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    assert "SCRAM-SHA-256=iterations=4096" in scripts.ok("kafka-configs", "--describe", *entity)
    scripts.ok("kafka-configs", "--alter", *entity, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in scripts.ok("kafka-configs", "--describe", *entity)
