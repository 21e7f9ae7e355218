"""Read the listeners from Kafka's settings: `listeners`, and the security settings of all listeners or of one.

A setting of one listener is `listener.name.<name in lower case>.<setting>`; a setting of one of its mechanisms is
`listener.name.<name>.<mechanism in lower case>.<setting>` (KIP-103, KIP-86).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from dualwrite.broker_emulator.security.listener import (
    UNROUTABLE,
    ClientAuth,
    Listener,
    SecurityProtocol,
    StoreType,
    Tls,
)
from dualwrite.broker_emulator.security.principal import PrincipalMapping
from dualwrite.broker_emulator.security.sasl.mechanism import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Sasl,
    UnsecuredTokens,
)

_JAAS_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_JAAS_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|([=;])|([^\s=;"]+))""", re.DOTALL)


class JaasEntry(NamedTuple):
    """A login module and its options, from sasl.jaas.config: `module flag name="value" ...;` (KIP-85)."""

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module}, options hidden)"


def parse_jaas(text: str) -> JaasEntry:
    """Parse one JAAS entry. Raises ValueError, without any value in its message: it may be a password."""
    tokens = _jaas_tokens(text.strip())
    if len(tokens) < 3 or tokens[-1] != ";" or tokens[1].lower() not in _JAAS_FLAGS:
        raise ValueError(
            f'it needs a login module, one of {", ".join(_JAAS_FLAGS)}, options as name="value", and a final semicolon'
        )
    module, _flag, *rest, _end = tokens
    if len(rest) % 3 or any(equals != "=" for equals in rest[1::3]):
        raise ValueError('its options must be name="value", and there may be one entry only')
    return JaasEntry(module, dict(zip(rest[::3], rest[2::3], strict=True)))


def _jaas_tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        found = _JAAS_TOKEN.match(text, position)
        if found is None:
            raise ValueError("a quotation mark is not closed")
        position = found.end()
        quoted, mark, word = found.groups()
        tokens.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else mark or word)
    return tokens


_ADDRESS: Final = re.compile(
    r"(?P<name>[^:/]+)://(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<host>[^:/\[\]]*)):(?P<port>\d{1,5})"
)
_OWN_NAMES: Final = {str(protocol): protocol for protocol in SecurityProtocol}
_LOGIN_MODULES: Final = {
    PLAIN: "PlainLoginModule",
    SCRAM_SHA_256: "ScramLoginModule",
    SCRAM_SHA_512: "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
_CALLBACK_HANDLERS: Final = {
    PLAIN: "PlainServerCallbackHandler",
    SCRAM_SHA_256: "ScramServerCallbackHandler",
    SCRAM_SHA_512: "ScramServerCallbackHandler",
    OAUTHBEARER: "OAuthBearerUnsecuredValidatorCallbackHandler",
}
_USER: Final = "user_"
_UNSECURED_VALIDATOR: Final = "unsecuredValidator"

EFFECTIVE: Final = frozenset(
    {
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "controller.listener.names",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "connections.max.reauth.ms",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.principal.mapping.rules",
    }
)
"""The settings that this module reads, without the prefixes of listeners and mechanisms."""

E = TypeVar("E", bound=StrEnum)


def listeners_from(properties: Mapping[str, str]) -> list[Listener] | None:
    """Return the listeners of `properties`, or None if `listeners` is not set.

    Listeners of controllers (`controller.listener.names`) are omitted, because there are no controllers here. Raises
    ValueError, with the name of the setting, for invalid settings.
    """
    if "listeners" not in properties:
        return None
    controllers = set(_words(properties.get("controller.listener.names", "")))
    bound = {name: address for name, address in _addresses(properties, "listeners").items() if name not in controllers}
    advertised = _addresses(properties, "advertised.listeners")
    for name in advertised.keys() - bound.keys() - controllers:
        raise ValueError(f"advertised.listeners names {name}, which listeners does not have")
    protocols = _protocols(properties)
    return [_listener(properties, name, address, advertised.get(name), protocols) for name, address in bound.items()]


class _Address(NamedTuple):
    host: str
    port: int


def _listener(
    properties: Mapping[str, str],
    name: str,
    address: _Address,
    advertised: _Address | None,
    protocols: Mapping[str, SecurityProtocol],
) -> Listener:
    if name not in protocols:
        raise ValueError(f"listener.security.protocol.map has no security protocol for the listener {name}")
    if (advertised or address).host in UNROUTABLE:
        raise ValueError(
            f"clients cannot connect to {(advertised or address).host}: set a host for {name} in advertised.listeners"
        )
    settings = _Settings(properties, name)
    protocol = protocols[name]
    try:
        tls = _tls(settings, protocol) if protocol.has_tls else None
        sasl = _sasl(settings) if protocol.has_sasl else None
    except ValueError as error:
        raise ValueError(f"listener {name}: {error}") from error
    advertised_host, advertised_port = advertised or (None, None)
    return Listener(name, address.host, address.port, tls, sasl, advertised_host, advertised_port)


class _Settings:
    """The settings of one listener; its own take precedence over those for all listeners."""

    def __init__(self, properties: Mapping[str, str], listener: str) -> None:
        self._properties = properties
        self._prefix = f"listener.name.{listener.lower()}."

    def own(self, name: str) -> str | None:
        """Return a setting of only this listener, or None."""
        return self._properties.get(self._prefix + name)

    def get(self, name: str) -> str | None:
        own = self.own(name)
        return self._properties.get(name) if own is None else own

    def of_mechanism(self, mechanism: str, name: str) -> str | None:
        own = self.own(f"{mechanism.lower()}.{name}")
        return self.get(name) if own is None else own

    def choice(self, name: str, values: type[E], default: E) -> E:
        value = self.get(name)
        return default if value is None else _choice(name, value, values)


def _tls(settings: _Settings, protocol: SecurityProtocol) -> Tls:
    client_auth = settings.choice("ssl.client.auth", ClientAuth, ClientAuth.NONE)
    if protocol.has_sasl and settings.own("ssl.client.auth") is None:
        # with a SASL login, a certificate is required only if this very listener requires it
        client_auth = ClientAuth.NONE
    enabled = settings.get("ssl.enabled.protocols")
    return Tls(
        keystore_type=_store_type(settings, "ssl.keystore"),
        keystore_location=settings.get("ssl.keystore.location"),
        keystore_password=settings.get("ssl.keystore.password"),
        keystore_certificate_chain=settings.get("ssl.keystore.certificate.chain"),
        keystore_key=settings.get("ssl.keystore.key"),
        key_password=settings.get("ssl.key.password"),
        truststore_type=_store_type(settings, "ssl.truststore"),
        truststore_location=settings.get("ssl.truststore.location"),
        truststore_password=settings.get("ssl.truststore.password"),
        truststore_certificates=settings.get("ssl.truststore.certificates"),
        client_auth=client_auth,
        enabled_protocols=("TLSv1.2", "TLSv1.3") if enabled is None else _words(enabled),
        principal_mapping=PrincipalMapping(settings.get("ssl.principal.mapping.rules") or "DEFAULT"),
    )


def _store_type(settings: _Settings, store: str) -> StoreType:
    given = settings.get(f"{store}.type") or "JKS"
    names = ("location", "certificates", "certificate.chain")
    if given == "JKS" and any(settings.get(f"{store}.{name}") is not None for name in names):
        raise ValueError(
            f"{store}.type defaults to JKS, which is not supported: export PEM or PKCS12 "
            "(keytool -importkeystore -deststoretype PKCS12 ...) and set the type"
        )
    return StoreType.PEM if given == "JKS" else _choice(f"{store}.type", given, StoreType)


def _sasl(settings: _Settings) -> Sasl:
    enabled = settings.get("sasl.enabled.mechanisms")
    if enabled is None:
        raise ValueError("sasl.enabled.mechanisms is missing; GSSAPI, which Kafka uses then, is not supported")
    mechanisms = _words(enabled)
    for mechanism in mechanisms:
        _check_callback_handler(settings, mechanism)
    entries = {mechanism: _login_module(settings, mechanism) for mechanism in mechanisms}
    users = entries[PLAIN].options if PLAIN in entries else {}
    tokens = entries[OAUTHBEARER].options if OAUTHBEARER in entries else {}
    return Sasl(
        mechanisms=mechanisms,
        plain_users={name.removeprefix(_USER): value for name, value in users.items() if name.startswith(_USER)},
        unsecured_tokens=_unsecured_tokens(tokens),
        connections_max_reauth_ms={
            mechanism: _number("connections.max.reauth.ms", value)
            for mechanism in mechanisms
            if (value := settings.of_mechanism(mechanism, "connections.max.reauth.ms")) is not None
        },
    )


def _check_callback_handler(settings: _Settings, mechanism: str) -> None:
    """Raise ValueError for a callback handler that would verify logins differently, such as one that checks signatures.

    As in Kafka, a handler can only be set for a listener and a mechanism.
    """
    setting = f"{mechanism.lower()}.sasl.server.callback.handler.class"
    handler = settings.own(setting)
    own = _CALLBACK_HANDLERS.get(mechanism)
    if handler is not None and handler.rpartition(".")[2] != own:
        only = f": leave it out, for {own}, which accepts unsigned tokens" if mechanism == OAUTHBEARER else ""
        raise ValueError(f"{setting} names {handler}, which is not supported{only}")


def _login_module(settings: _Settings, mechanism: str) -> JaasEntry:
    """Return the JAAS entry of a mechanism; as in Kafka, it is set for the listener and the mechanism."""
    setting = f"{mechanism.lower()}.sasl.jaas.config"
    value = settings.own(setting)
    if value is None:
        return JaasEntry(_LOGIN_MODULES.get(mechanism, ""), {})
    try:
        entry = parse_jaas(value)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from error
    expected = _LOGIN_MODULES.get(mechanism)
    if expected is not None and entry.module.rpartition(".")[2] != expected:
        raise ValueError(f"{setting} names {entry.module}; {mechanism} needs {expected}")
    return entry


def _unsecured_tokens(options: Mapping[str, str]) -> UnsecuredTokens:
    def option(name: str, default: str) -> str:
        return options.get(_UNSECURED_VALIDATOR + name, "").strip() or default

    return UnsecuredTokens(
        principal_claim_name=option("PrincipalClaimName", "sub"),
        scope_claim_name=option("ScopeClaimName", "scope"),
        required_scope=tuple(option("RequiredScope", "").split()),
        allowable_clock_skew_ms=_number(
            f"{_UNSECURED_VALIDATOR}AllowableClockSkewMs", option("AllowableClockSkewMs", "0")
        ),
    )


def _protocols(properties: Mapping[str, str]) -> dict[str, SecurityProtocol]:
    given = properties.get("listener.security.protocol.map")
    if given is None:
        return dict(_OWN_NAMES)
    protocols = {}
    for pair in _words(given):
        name, colon, protocol = pair.partition(":")
        if not colon:
            raise ValueError(f"listener.security.protocol.map: {pair!r} is not NAME:PROTOCOL")
        protocols[name.strip().upper()] = _choice(
            "listener.security.protocol.map", protocol.strip().upper(), SecurityProtocol
        )
    return protocols


def _addresses(properties: Mapping[str, str], setting: str) -> dict[str, _Address]:
    addresses: dict[str, _Address] = {}
    for text in _words(properties.get(setting, "")):
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise ValueError(f"{setting}: {text!r} is not NAME://HOST:PORT")
        name = found["name"].upper()
        if name in addresses:
            raise ValueError(f"{setting} names {name} twice")
        addresses[name] = _Address(found["ipv6"] or found["host"] or "", int(found["port"]))
    return addresses


def _words(value: str) -> tuple[str, ...]:
    return tuple(word for word in (part.strip() for part in value.split(",")) if word)


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None


def _choice(name: str, value: str, values: Callable[[str], E]) -> E:
    try:
        return values(value)
    except ValueError:
        known = ", ".join(map(str, values))  # type: ignore[call-overload]  # an enumeration is iterable
        raise ValueError(f"{name} must be one of {known}, not {value!r}") from None
