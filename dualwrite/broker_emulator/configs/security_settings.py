"""A broker's settings for TLS, SASL, delegation tokens and the authorizer in Apache Kafka 4.4, in Kafka's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualwrite.broker_emulator.configs.setting import Between, ConfigType, OneOf, Setting, UpdateMode, by_name

BOOLEAN: Final = ConfigType.BOOLEAN
STRING: Final = ConfigType.STRING
INT: Final = ConfigType.INT
SHORT: Final = ConfigType.SHORT
LONG: Final = ConfigType.LONG
DOUBLE: Final = ConfigType.DOUBLE
LIST: Final = ConfigType.LIST
CLASS: Final = ConfigType.CLASS
PASSWORD: Final = ConfigType.PASSWORD
PER_BROKER: Final = UpdateMode.PER_BROKER

SECURITY_SETTINGS: Final = (
    Setting("connections.max.reauth.ms", LONG, "0"),
    Setting("sasl.server.max.receive.size", INT, "524288"),
    Setting("security.providers", STRING, None),
    Setting(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        update=PER_BROKER,
    ),
    Setting("ssl.client.auth", STRING, "none", OneOf(("required", "requested", "none")), PER_BROKER),
    Setting("ssl.principal.mapping.rules", STRING, "DEFAULT"),
    Setting("ssl.allow.dn.changes", BOOLEAN, "false"),
    Setting("ssl.allow.san.changes", BOOLEAN, "false"),
    Setting("ssl.protocol", STRING, "TLSv1.3", update=PER_BROKER),
    Setting("ssl.provider", STRING, None, update=PER_BROKER),
    Setting("ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", update=PER_BROKER),
    Setting("ssl.keystore.type", STRING, "JKS", update=PER_BROKER),
    Setting("ssl.keystore.location", STRING, None, update=PER_BROKER),
    Setting("ssl.keystore.password", PASSWORD, None, update=PER_BROKER),
    Setting("ssl.key.password", PASSWORD, None, update=PER_BROKER),
    Setting("ssl.keystore.key", PASSWORD, None, update=PER_BROKER),
    Setting("ssl.keystore.certificate.chain", PASSWORD, None, update=PER_BROKER),
    Setting("ssl.truststore.type", STRING, "JKS", update=PER_BROKER),
    Setting("ssl.truststore.location", STRING, None, update=PER_BROKER),
    Setting("ssl.truststore.password", PASSWORD, None, update=PER_BROKER),
    Setting("ssl.truststore.certificates", PASSWORD, None, update=PER_BROKER),
    Setting("ssl.keymanager.algorithm", STRING, "SunX509", update=PER_BROKER),
    Setting("ssl.trustmanager.algorithm", STRING, "PKIX", update=PER_BROKER),
    Setting("ssl.endpoint.identification.algorithm", STRING, "https", update=PER_BROKER),
    Setting("ssl.secure.random.implementation", STRING, None, update=PER_BROKER),
    Setting("ssl.cipher.suites", LIST, "", update=PER_BROKER),
    Setting("ssl.engine.factory.class", CLASS, None, update=PER_BROKER),
    Setting("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", update=PER_BROKER),
    Setting("sasl.enabled.mechanisms", LIST, "GSSAPI", update=PER_BROKER),
    Setting("sasl.server.callback.handler.class", CLASS, None),
    Setting("sasl.kerberos.principal.to.local.rules", LIST, "DEFAULT", update=PER_BROKER),
    Setting("sasl.jaas.config", PASSWORD, None, update=PER_BROKER),
    Setting("sasl.client.callback.handler.class", CLASS, None),
    Setting("sasl.login.class", CLASS, None),
    Setting("sasl.login.callback.handler.class", CLASS, None),
    Setting("sasl.kerberos.service.name", STRING, None, update=PER_BROKER),
    Setting("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", update=PER_BROKER),
    Setting("sasl.kerberos.ticket.renew.window.factor", DOUBLE, "0.8", update=PER_BROKER),
    Setting("sasl.kerberos.ticket.renew.jitter", DOUBLE, "0.05", update=PER_BROKER),
    Setting("sasl.kerberos.min.time.before.relogin", LONG, "60000", update=PER_BROKER),
    Setting("sasl.login.refresh.window.factor", DOUBLE, "0.8", update=PER_BROKER),
    Setting("sasl.login.refresh.window.jitter", DOUBLE, "0.05", update=PER_BROKER),
    Setting("sasl.login.refresh.min.period.seconds", SHORT, "60", update=PER_BROKER),
    Setting("sasl.login.refresh.buffer.seconds", SHORT, "300", update=PER_BROKER),
    Setting("sasl.login.connect.timeout.ms", INT, None),
    Setting("sasl.login.read.timeout.ms", INT, None),
    Setting("sasl.login.retry.backoff.max.ms", LONG, "10000"),
    Setting("sasl.login.retry.backoff.ms", LONG, "100"),
    Setting(
        "sasl.oauthbearer.jwt.retriever.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    ),
    Setting(
        "sasl.oauthbearer.jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
    ),
    Setting("sasl.oauthbearer.scope", STRING, None),
    Setting("sasl.oauthbearer.client.credentials.client.id", STRING, None),
    Setting("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None),
    Setting("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", OneOf(("ES256", "RS256"), ignores_case=True)),
    Setting("sasl.oauthbearer.assertion.claim.aud", STRING, None),
    Setting("sasl.oauthbearer.assertion.claim.exp.seconds", INT, "300", Between(0, 86400)),
    Setting("sasl.oauthbearer.assertion.claim.iss", STRING, None),
    Setting("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, "false"),
    Setting("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, "60", Between(0, 3600)),
    Setting("sasl.oauthbearer.assertion.claim.sub", STRING, None),
    Setting("sasl.oauthbearer.assertion.file", STRING, None),
    Setting("sasl.oauthbearer.assertion.private.key.file", STRING, None),
    Setting("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None),
    Setting("sasl.oauthbearer.assertion.template.file", STRING, None),
    Setting("sasl.oauthbearer.scope.claim.name", STRING, "scope"),
    Setting("sasl.oauthbearer.sub.claim.name", STRING, "sub"),
    Setting("sasl.oauthbearer.token.endpoint.url", STRING, None),
    Setting("sasl.oauthbearer.jwks.endpoint.url", STRING, None),
    Setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, "3600000"),
    Setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, "100"),
    Setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, "10000"),
    Setting("sasl.oauthbearer.clock.skew.seconds", INT, "30"),
    Setting("sasl.oauthbearer.allow.unverified.audience", BOOLEAN, "false"),
    Setting("sasl.oauthbearer.expected.audience", LIST, ""),
    Setting("sasl.oauthbearer.allow.unverified.issuer", BOOLEAN, "false"),
    Setting("sasl.oauthbearer.expected.issuer", STRING, None),
    Setting("delegation.token.secret.key", PASSWORD, None),
    Setting("delegation.token.max.lifetime.ms", LONG, "604800000", Between(1)),
    Setting("delegation.token.expiry.time.ms", LONG, "86400000", Between(1)),
    Setting("delegation.token.expiry.check.interval.ms", LONG, "3600000", Between(1)),
)

AUTHORIZER_SETTINGS: Final[Mapping[str, Setting]] = by_name(
    (Setting("super.users", STRING, ""), Setting("allow.everyone.if.no.acl.found", BOOLEAN, "false"))
)
"""Settings for the class named by `authorizer.class.name`; their types are not part of Kafka's own settings."""
