"""A broker with TLS, SASL and access control of either kind, by the very same settings, and the clients' settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.testing.certificates import KEY_PASSWORD, Certificates, make_certificates
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.apache_kafka.secured import (
    LIMITED,
    LISTENERS,
    PASSWORDS,
    WORKER,
    secured_kafka,
    secured_properties,
    unsecured_token,
)
from tests.support.names import next_name
from tests.support.unavailable import skip

from .client_folders import BROKER_FIXTURES, On
from .wire import Wire


@dataclass(frozen=True, slots=True)
class Login:
    """A client's login: its listener and credentials."""

    listener: str
    mechanism: str | None = None
    user: str = WORKER
    is_wrong: bool = False
    """Whether the password is wrong."""

    @property
    def password(self) -> str:
        return "wrong" if self.is_wrong else PASSWORDS[self.user]

    @property
    def protocol(self) -> str:
        return LISTENERS[self.listener]

    @property
    def has_certificate(self) -> bool:
        return self.listener == "MUTUAL"

    def __str__(self) -> str:
        return f"{self.listener} {self.mechanism or ''}".strip()


LOGINS = (
    Login("TLS"),
    Login("MUTUAL"),
    Login("SASL", "PLAIN"),
    Login("SASL", "SCRAM-SHA-256"),
    Login("SASL_TLS", "SCRAM-SHA-512"),
)
TOKEN_LOGIN = Login("SASL_TLS", "OAUTHBEARER")
WRONG_LOGIN = Login("SASL", "SCRAM-SHA-256", is_wrong=True)
LIMITED_LOGIN = Login("SASL", "SCRAM-SHA-256", user=LIMITED)


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """A running one."""

    addresses: dict[str, str]
    certificates: Certificates

    @property
    def bootstrap_servers(self) -> str:
        """The address of the listener that needs no login, as a super user."""
        return self.addresses["PLAINTEXT"]

    def servers(self, login: Login) -> str:
        return self.addresses[login.listener]

    def of_librdkafka(self, login: Login) -> dict[str, Any]:
        """Settings by librdkafka's names."""
        settings: dict[str, Any] = {"bootstrap.servers": self.servers(login), "security.protocol": login.protocol}
        if login.mechanism is not None:
            settings |= {"sasl.mechanism": login.mechanism, "sasl.username": login.user}
            settings["sasl.password"] = login.password
        if "SSL" in login.protocol:
            settings["ssl.ca.location"] = str(self.certificates.authority)
        if login.has_certificate:
            settings |= {"ssl.certificate.location": str(self.certificates.client), "ssl.key.password": KEY_PASSWORD}
            settings["ssl.key.location"] = str(self.certificates.client_key)
        return settings

    def of_java(self, login: Login) -> dict[str, str]:
        """Settings by the Java client's names."""
        settings = {"security.protocol": login.protocol}
        if login.mechanism is not None:
            kind = "plain.Plain" if login.mechanism == "PLAIN" else "scram.Scram"
            module = f"org.apache.kafka.common.security.{kind}LoginModule"
            settings["sasl.mechanism"] = login.mechanism
            settings["sasl.jaas.config"] = f'{module} required username="{login.user}" password="{login.password}";'
        if "SSL" in login.protocol:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.certificates.authority)}
        if login.has_certificate:
            chain = self.certificates.client.read_text()
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.key": _one_line(self._plain_key())}
            settings["ssl.keystore.certificate.chain"] = _one_line(chain)
        return settings

    def of_programs(self, login: Login) -> dict[str, str]:
        """Settings of the programs in other languages: PEM as text, and the login."""
        told: dict[str, str] = {}
        if login.mechanism is not None:
            told |= {"mechanism": login.mechanism, "username": login.user, "password": login.password}
        if "SSL" in login.protocol:
            told["authority"] = self.certificates.authority.read_text()
        if login.has_certificate:
            told |= {"certificate": self.certificates.client.read_text(), "key": self._plain_key()}
        return told

    def _plain_key(self) -> str:
        """The client's key; Java 17 cannot decrypt it where it stands in a PEM file."""
        key = load_pem_private_key(self.certificates.client_key.read_bytes(), KEY_PASSWORD.encode())
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _one_line(pem: str) -> str:
    """As a properties file takes it."""
    return pem.strip().replace("\n", "\\n")


def token() -> str:
    """A token for OAUTHBEARER."""
    return unsecured_token(WORKER)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def _emulated(certificates: Certificates) -> Emulator:
    listeners = ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS)
    protocols = ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items())
    properties = {"listeners": listeners, "listener.security.protocol.map": protocols}
    config = BrokerConfig.from_properties({**properties, **secured_properties(certificates)})
    return Emulator(config=config, scram_users=PASSWORDS)


@pytest.fixture(scope="session", params=list(BROKER_FIXTURES))
def secured(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[SecuredBroker]:
    """The emulator and a real Apache Kafka, with one and the same settings."""
    if BROKER_FIXTURES[request.param] == On.EMULATOR:
        with _emulated(certificates) as emulator:
            yield SecuredBroker({name: emulator.bootstrap(name) for name in LISTENERS}, certificates)
        return
    kafka = secured_kafka(certificates)
    try:
        kafka.start()
    except ServerUnavailableError as error:
        skip(error)
    yield SecuredBroker({name: kafka.address(name) for name in LISTENERS}, certificates)
    kafka.stop()


@pytest.fixture
def secured_wire(secured: SecuredBroker) -> Iterator[Wire]:
    """A connection of a super user."""
    with Wire(secured.bootstrap_servers) as wire:
        yield wire


@pytest.fixture
def secured_topic(secured_wire: Wire) -> str:
    """A new topic with one partition."""
    name = next_name("secured")
    secured_wire.create_topic(name)
    return name
