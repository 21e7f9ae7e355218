"""A real Apache Kafka with a listener per way to be secured, and the settings of clients that come in by each."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dualwrite.testing.certificates import KEY_PASSWORD, Certificates
from tests.support.servers.apache_kafka import ApacheKafka

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "SASL_TLS": "SASL_SSL",
    "BRIEF": "SASL_PLAINTEXT",
}
SESSION_MS = 1_300
"""How long a login is good for at the listener BRIEF; Kafka takes a new one once a second at most."""

WORKER, LIMITED = "worker", "limited"
"""A super user, and a user with only a test's rights."""
ODDLY_NAMED = "a,b=c"
"""A user, added by a test, whose name SCRAM has to escape."""
PASSWORDS = {WORKER: "password-of-the-worker", LIMITED: "password-of-the-limited"}

_LOGIN_MODULES = "org.apache.kafka.common.security"


def secured_kafka(certificates: Certificates) -> ApacheKafka:
    """Not started yet."""
    return ApacheKafka(
        listeners=LISTENERS,
        scram_users=PASSWORDS,
        properties=secured_properties(certificates),
    )


def secured_properties(certificates: Certificates) -> dict[str, str]:
    """The settings of a broker that is secured in these ways, but for its listeners."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "listener.name.mutual.ssl.client.auth": "required",
        "connection.failed.authentication.delay.ms": "0",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
        "super.users": f"User:ANONYMOUS;User:{WORKER};User:{ODDLY_NAMED};User:client",
        **_sasl("sasl", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
        **_sasl("sasl_tls", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"]),
        **_sasl("brief", ["PLAIN", "OAUTHBEARER"]),
        "listener.name.brief.connections.max.reauth.ms": str(SESSION_MS),
    }


def _sasl(listener: str, mechanisms: list[str]) -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    options = {
        "PLAIN": f"{_LOGIN_MODULES}.plain.PlainLoginModule required {users};",
        "SCRAM-SHA-256": f"{_LOGIN_MODULES}.scram.ScramLoginModule required;",
        "SCRAM-SHA-512": f"{_LOGIN_MODULES}.scram.ScramLoginModule required;",
        "OAUTHBEARER": (
            f"{_LOGIN_MODULES}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker" unsecuredValidatorAllowableClockSkewMs="3000";'
        ),
    }
    name = f"listener.name.{listener}"
    return {f"{name}.sasl.enabled.mechanisms": ",".join(mechanisms)} | {
        f"{name}.{mechanism.lower()}.sasl.jaas.config": options[mechanism] for mechanism in mechanisms
    }


def unsecured_token(subject: str, lifetime_s: float = 300) -> str:
    """An unsigned token, as Kafka takes it where nothing else is configured."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now_s = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now_s, 'exp': now_s + lifetime_s})}."


def by_password(mechanism: str, user: str = WORKER, password: str | None = None) -> dict[str, Any]:
    """Settings of a login; the right password unless another one is given."""
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password or PASSWORDS[user]}


class Way(NamedTuple):
    """A way in: the listener, our settings but for the address, and confluent-kafka's."""

    listener: str
    ours: dict[str, Any]
    theirs: dict[str, Any]


def ways(certificates: Certificates) -> dict[str, Way]:
    """Every mechanism, without TLS or with it."""
    tls = {"ssl.ca.location": str(certificates.authority)}
    identity = {
        "ssl.certificate.location": str(certificates.client),
        "ssl.key.location": str(certificates.client_key),
        "ssl.key.password": KEY_PASSWORD,
    }
    token: Callable[[], str] = lambda: unsecured_token(WORKER)  # noqa: E731 - one of many settings
    oauth = {"sasl.mechanism": "OAUTHBEARER"}
    theirs_oauth = {**oauth, "oauth_cb": lambda _: (unsecured_token(WORKER), time.time() + 300)}

    def same(listener: str, settings: dict[str, Any]) -> Way:
        settings = settings | {"security.protocol": LISTENERS[listener]}
        return Way(listener, settings, settings)

    ready = ssl.create_default_context(cafile=str(certificates.authority))
    return {
        "TLS": same("TLS", tls),
        "TLS with a ready context": Way("TLS", {"ssl.context": ready}, tls | {"security.protocol": "SSL"}),
        "TLS with a client's certificate": same("MUTUAL", tls | identity),
        "PLAIN": same("SASL", by_password("PLAIN")),
        "SCRAM-SHA-256": same("SASL", by_password("SCRAM-SHA-256")),
        "SCRAM-SHA-512": same("SASL", by_password("SCRAM-SHA-512")),
        "PLAIN over TLS": same("SASL_TLS", tls | by_password("PLAIN")),
        "SCRAM-SHA-512 over TLS": same("SASL_TLS", tls | by_password("SCRAM-SHA-512")),
        "OAUTHBEARER over TLS": Way(
            "SASL_TLS",
            {"security.protocol": "SASL_SSL", **tls, **oauth, "sasl.oauth.token.provider": token},
            {"security.protocol": "SASL_SSL", **tls, **theirs_oauth},
        ),
    }
