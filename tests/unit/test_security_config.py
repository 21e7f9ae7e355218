"""Settings of TLS and SASL: contradictions are refused, and no secret is shown."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from dualwrite.config import AdminConfig, ProducerConfig
from dualwrite.errors import ConfigError
from dualwrite.security_config import SecurityConfig

PASSWORD = {"sasl.username": "user", "sasl.password": "geheim"}
SASL: dict[str, Any] = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"} | PASSWORD
TLS: dict[str, Any] = {"security.protocol": "SSL"}


def parse(settings: dict[str, Any]) -> ProducerConfig:
    return ProducerConfig.parse({"bootstrap.servers": "h:1"} | settings, {})


def token() -> str:
    return "geheim"


def test_no_security_is_the_default() -> None:
    assert parse({}).security == SecurityConfig()
    assert not SecurityConfig().uses_tls
    assert not SecurityConfig().uses_sasl


@pytest.mark.parametrize(
    ("protocol", "tls", "sasl"),
    [("PLAINTEXT", False, False), ("ssl", True, False), ("sasl_plaintext", False, True), ("SASL_SSL", True, True)],
)
def test_protocols(protocol: str, tls: bool, sasl: bool) -> None:
    settings = {"security.protocol": protocol} | (PASSWORD | {"sasl.mechanism": "scram-sha-256"} if sasl else {})
    parsed = parse(settings)
    assert (parsed.uses_tls, parsed.uses_sasl) == (tls, sasl)


def test_each_setting_reaches_its_field(tmp_path: Path) -> None:
    parsed = parse(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauth.token.provider": token,
            "sasl.oauth.extensions": {"logicalCluster": "c", "identityPoolId": "p"},
            "ssl.ca.location": tmp_path / "ca.pem",
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    assert parsed.sasl_oauth_token_provider is token
    assert parsed.sasl_oauth_extensions == (("identityPoolId", "p"), ("logicalCluster", "c"))
    assert parsed.ssl_ca_location == str(tmp_path / "ca.pem")
    assert parsed.ssl_endpoint_identification_algorithm == "none"


def test_equal_settings_are_equal_keys() -> None:
    assert parse(SASL).security == parse(SASL | {"linger.ms": 1}).security
    assert hash(parse(SASL).security) == hash(parse(SASL).security)
    assert parse(SASL).security != parse(SASL | {"sasl.password": "other"}).security


def test_administration_has_the_same_settings() -> None:
    admin = AdminConfig.parse({"bootstrap.servers": "h:1"} | SASL, {})
    assert admin.security == parse(SASL).security
    with pytest.raises(ConfigError, match=r"sasl\.password is missing"):
        AdminConfig.parse({"bootstrap.servers": "h:1"} | SASL | {"sasl.password": None}, {})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"security.protocol": "TLS"}, "is not one of PLAINTEXT, SSL"),
        ({"security.protocol": None}, "is not one of PLAINTEXT, SSL"),
        (PASSWORD, r"sasl\.username has no effect with security\.protocol=PLAINTEXT; .*SASL_PLAINTEXT or SASL_SSL"),
        (TLS | PASSWORD, r"sasl\.username has no effect with security\.protocol=SSL"),
        ({"ssl.ca.location": "x"}, r"ssl\.ca\.location has no effect .*set security\.protocol to SSL or SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism is missing: set it to one of PLAIN, SCRAM-SHA-256"),
        (SASL | {"sasl.mechanism": "GSSAPI"}, "is not one of PLAIN, SCRAM"),
        (SASL | {"sasl.password": None}, r"sasl\.password is missing: sasl\.mechanism=PLAIN needs it"),
        (SASL | {"sasl.password": ""}, r"sasl\.password must be a non-empty string$"),
        (SASL | {"sasl.password": b"geheim"}, r"sasl\.password must be a non-empty string$"),
        (SASL | {"sasl.username": "a\0b"}, "must be a non-empty string without NUL"),
        (SASL | {"sasl.oauth.token.provider": token}, r"has no effect with sasl\.mechanism=PLAIN"),
        (SASL | {"sasl.mechanism": "OAUTHBEARER"}, r"sasl\.oauth\.token\.provider is missing"),
        (
            SASL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token.provider": token},
            r"sasl\.username has no effect with sasl\.mechanism=OAUTHBEARER",
        ),
        (SASL | {"sasl.oauth.token.provider": "geheim"}, "returns a token, .*not str$"),
        (SASL | {"sasl.oauth.extensions": "a=b"}, "a mapping of str to str, not str$"),
        (TLS | {"ssl.key.location": "k"}, r"ssl\.key\.location needs ssl\.certificate\.location"),
        (TLS | {"ssl.key.password": "geheim"}, r"ssl\.key\.password needs ssl\.certificate\.location"),
        (TLS | {"ssl.ca.location": ""}, "is not the path of a file"),
        (TLS | {"ssl.context": "x"}, r"ssl\.context must be an ssl\.SSLContext, not str"),
        (TLS | {"ssl.endpoint.identification.algorithm": "off"}, "is not one of https, none"),
        (
            TLS | {"ssl.context": ssl.create_default_context(), "ssl.ca.location": "x"},
            r"ssl\.ca\.location cannot be set together with ssl\.context",
        ),
        (SASL | {"sasl.pasword": "geheim"}, r"did you mean sasl\.password\?"),
    ],
)
def test_invalid_security_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(settings)
    assert "geheim" not in str(caught.value)


def test_an_invalid_mapping_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.parse([("sasl.password", "geheim")], {})  # type: ignore[arg-type]
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("config", [parse(SASL), parse(SASL).security])
def test_no_secret_is_in_a_repr(config: object) -> None:
    assert "geheim" not in repr(config)
    assert "geheim" not in str(config)
    assert "'user'" in repr(config)
