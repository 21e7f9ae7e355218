"""Clients of three codebases with their own settings for the same logins: send a record, or raise why not."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AwaitedTokenProvider
from aiokafka.errors import KafkaConnectionError
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError
from kafka.net.sasl.oauth import AbstractTokenProvider

from dualwrite import AuthenticationError, Producer
from dualwrite.broker_emulator import Emulator
from dualwrite.testing.certificates import KEY_PASSWORD, Certificates
from tests.emulator.security.login_script import GOOD, USER, unsigned_token

PATIENCE_S: Final = 20
TOPIC: Final = "t"


class WayIn(NamedTuple):
    """A listener, and how to log in there."""

    listener: str
    mechanism: str | None = None
    has_certificate: bool = False
    password: str = GOOD
    token_age_s: int = 0
    authority: str = "authority"
    """The name of the trusted certificate."""

    @property
    def is_refused(self) -> bool:
        """Whether the login has a mistake."""
        lacks_certificate = self.listener == "MUTUAL" and not self.has_certificate
        return lacks_certificate or self.password != GOOD or bool(self.token_age_s) or self.authority != "authority"

    @property
    def has_tls(self) -> bool:
        return self.listener in ("TLS", "ASKING", "MUTUAL", "SASL_TLS")

    @property
    def protocol(self) -> str:
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.has_tls else "PLAINTEXT")

    def token(self) -> str:
        return unsigned_token(time.time() - self.token_age_s)

    def trusted(self, certificates: Certificates) -> Path:
        path: Path = getattr(certificates, self.authority)
        return path

    def settings(self, certificates: Certificates) -> dict[str, Any]:
        """Return the settings of our own client, but for a token."""
        settings: dict[str, Any] = {"security.protocol": self.protocol}
        if self.mechanism:
            settings["sasl.mechanism"] = self.mechanism
            if self.mechanism != "OAUTHBEARER":
                settings |= {"sasl.username": USER, "sasl.password": self.password}
        if self.has_tls:
            settings["ssl.ca.location"] = str(self.trusted(certificates))
        if self.has_certificate:
            settings |= {"ssl.certificate.location": str(certificates.client), "ssl.key.password": KEY_PASSWORD}
            settings["ssl.key.location"] = str(certificates.client_key)
        return settings


class RefusedError(Exception):
    """The client is refused, or cannot connect."""


def with_kafka_python(emulator: Emulator, certificates: Certificates, way: WayIn) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return way.token()

    settings: dict[str, Any] = {"security_protocol": way.protocol}
    if way.mechanism:
        tokens = Tokens()  # type: ignore[no-untyped-call]  # kafka-python's __init__ has no annotations
        settings |= {"sasl_mechanism": way.mechanism, "sasl_oauth_token_provider": tokens}
        settings |= {"sasl_plain_username": USER, "sasl_plain_password": way.password}
    if way.has_tls:
        settings["ssl_cafile"] = str(way.trusted(certificates))
    if way.has_certificate:
        settings |= {"ssl_certfile": str(certificates.client), "ssl_keyfile": str(certificates.client_key)}
        settings["ssl_password"] = KEY_PASSWORD
    settings["bootstrap_timeout_ms"] = 500 if way.is_refused else PATIENCE_S * 1000  # it tries again in any case
    try:
        producer = KafkaProducer(bootstrap_servers=emulator.bootstrap(way.listener), **settings)
    except KafkaTimeoutError as error:
        raise RefusedError(str(error)) from error
    try:
        producer.send(TOPIC, b"v").get(PATIENCE_S)
    finally:
        producer.close()


def with_aiokafka(emulator: Emulator, certificates: Certificates, way: WayIn) -> None:
    class Tokens(AwaitedTokenProvider):
        async def token(self) -> str:
            return way.token()

    settings: dict[str, Any] = {"security_protocol": way.protocol}
    if way.mechanism:
        settings |= {"sasl_mechanism": way.mechanism, "sasl_oauth_token_provider": Tokens()}
        settings |= {"sasl_plain_username": USER, "sasl_plain_password": way.password}
    if way.has_tls:
        context = settings["ssl_context"] = ssl.create_default_context(cafile=str(way.trusted(certificates)))
        if way.has_certificate:
            context.load_cert_chain(certificates.client, certificates.client_key, KEY_PASSWORD)

    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=emulator.bootstrap(way.listener), **settings)
        try:
            await producer.start()
            await producer.send_and_wait(TOPIC, b"v")
        except KafkaConnectionError as error:
            raise RefusedError(str(error)) from error
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(send(), PATIENCE_S))


def with_dualwrite(emulator: Emulator, certificates: Certificates, way: WayIn) -> None:
    """Send a record in a transaction."""
    settings = way.settings(certificates)
    if way.mechanism == "OAUTHBEARER":
        settings |= {"sasl.oauth.token.provider": way.token}
    where = {"bootstrap.servers": emulator.bootstrap(way.listener), "max.block.ms": PATIENCE_S * 1000}
    producer = Producer({**where, **settings, "transactional.id": "way-in"})
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"v")
        producer.commit_transaction()
    except AuthenticationError as error:
        raise RefusedError(str(error)) from error
    finally:
        producer.close(timeout_s=0)


Client = Callable[[Emulator, Certificates, WayIn], None]

CLIENTS: Final[dict[str, Client]] = {
    "dualwrite": with_dualwrite,
    "aiokafka": with_aiokafka,
    "kafka-python": with_kafka_python,
}
