"""Properties files of Java clients: they are translated, and no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualwrite.broker_emulator import Emulator, Listener, Sasl
from dualwrite.cli.command_config import settings_of_file
from dualwrite.cli.connection import kafka_access
from dualwrite.errors import ConfigError
from dualwrite.java_client import translated
from tests.apache_kafka.secured import unsecured_token
from tests.cli.conftest import Call, assert_one_line

JAAS = 'org.apache.kafka.common.security.{}LoginModule required username="alice" password="se\\"s=a;me" ;'


def test_a_file_of_a_java_client(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# for operators\n"
        "security.protocol = SASL_SSL\n"
        "sasl.mechanism: SCRAM-SHA-512\n"
        "sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="alice" password="sesame";\n'
        "ssl.truststore.type=PEM\n"
        "ssl.truststore.location=/etc/ca.pem\n"
    )
    assert settings_of_file(str(file)) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "sesame",
        "ssl.ca.location": "/etc/ca.pem",
    }
    kafka_access("127.0.0.1:1", str(file), 100)


@pytest.mark.parametrize("kind", ["plain.Plain", "scram.Scram"])
def test_a_quoted_password(kind: str) -> None:
    settings = translated({"sasl.jaas.config": JAAS.format(kind)})
    assert settings == {"sasl.username": "alice", "sasl.password": 'se"s=a;me'}


def test_options_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:2\ndefault.api.timeout.ms=5\n")
    assert kafka_access("127.0.0.1:1", str(file), 100).settings == {"bootstrap_servers": "127.0.0.1:1"}


def test_settings_of_a_producer_are_for_commands_that_publish(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "client.id=shop\nmax.request.size=8000000\npartitioner=tests.recipes.test_refused_blocks:by_number\n"
    )
    access = kafka_access("127.0.0.1:1", str(file), 100, publishes=True)
    assert access.settings == {"bootstrap_servers": "127.0.0.1:1", "client_id": "shop"}
    assert access.publishing.keys() == {"max_request_size", "partitioner"}
    options = ("--bootstrap-server", "127.0.0.1:1", "--command-config", file)
    assert_one_line(call("transactions", "list", *options), 2, "unknown setting 'max.request.size'")
    file.write_text("partitioner=no.such.module:function\n")
    recover = ("recover", "--all", "--database", "sqlite://", *options)
    assert_one_line(call(*recover), 2, "'no.such.module:function' cannot be imported: No module named 'no'")
    file.write_text("transactional.id=a\n")
    assert_one_line(call(*recover), 2, "unknown setting 'transactional.id'")


def token() -> str:
    return unsecured_token("operator")


def test_a_command_logs_in_with_the_tokens_of_a_function(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    listener = Listener("TOKENS", sasl=Sasl(mechanisms=["OAUTHBEARER"]))
    with Emulator(listeners=[listener]) as emulator:
        options = ("transactions", "list", "--bootstrap-server", emulator.bootstrap("TOKENS"), "--command-config", file)
        settings = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauth.token.provider="
        file.write_text(f"{settings}{__name__}:token\n")
        assert call(*options).code == 0
        file.write_text(f"{settings}no.such.module:token\n")
        assert_one_line(call(*options), 2, "'no.such.module:token' cannot be imported: No module named 'no'")
        file.write_text(f"{settings}token\n")
        assert_one_line(call(*options), 2, "returns a token, as it is or as 'module:function', not str")


def test_ours_by_their_own_names() -> None:
    settings = {"ssl.ca.location": "ca.pem", "sasl.username": "a", "request.timeout.ms": "5"}
    assert translated(settings) == settings


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        (
            {"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required keyTab=sesame;"},
            "PlainLoginModule",
        ),
        ({"sasl.jaas.config": JAAS.format("plain.Plain").replace("username", "user")}, "username and password"),
        ({"ssl.truststore.location": "ca.jks", "ssl.truststore.password": "sesame"}, "convert it to PEM"),
        ({"ssl.keystore.location": "me.p12", "ssl.keystore.type": "PKCS12"}, "ssl.certificate.location"),
    ],
)
def test_settings_for_java_only_are_refused(properties: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        translated(properties)
    assert "sesame" not in str(raised.value)


def test_wrong_files(call: Call, tmp_path: Path) -> None:
    options = ("transactions", "list", "--bootstrap-server", "127.0.0.1:1", "--command-config")
    assert_one_line(call(*options, tmp_path / "nowhere"), 2, "cannot be read")
    file = tmp_path / "client.properties"
    file.write_text("retry.backof.ms=7\nsasl.password=sesame\n")
    done = call(*options, file)
    assert_one_line(done, 2, f"{file}: unknown setting 'retry.backof.ms'; did you mean retry.backoff.ms?")
    assert "sesame" not in done.err
