"""The settings of TLS (`ssl.*`) and SASL (`sasl.*`), which producers and admins share.

Secrets appear in no `repr` and in no error.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from dualwrite.errors import ConfigError
from dualwrite.exact import exact
from dualwrite.imported import imported

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*PASSWORD_MECHANISMS, "OAUTHBEARER")

Say = Callable[[str], str]
"""A function that writes the name of a field as the caller writes names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Validated settings; hashable, so that producers with equal settings can share connections."""

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_oauth_token_provider: Callable[[], str] | None = field(default=None, repr=False)
    sasl_oauth_extensions: tuple[tuple[str, str], ...] = ()
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_endpoint_identification_algorithm: str = "https"
    ssl_context: ssl.SSLContext | None = None

    @property
    def security(self) -> SecurityConfig:
        """These settings alone, without those that a subclass adds."""
        return SecurityConfig(**{each.name: getattr(self, each.name) for each in fields(SecurityConfig)})

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted, and the brokers' certificates checked."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections begin with a login."""
        return self.security_protocol.startswith("SASL_")

    def check_security(self, given: Collection[str], say: Say) -> None:
        """Raise `ConfigError` if settings are missing or contradict each other. `given`: the fields that are set."""
        protocol = say("security_protocol")
        for prefix, used, protocols in (
            ("sasl_", self.uses_sasl, "SASL_PLAINTEXT or SASL_SSL"),
            ("ssl_", self.uses_tls, "SSL or SASL_SSL"),
        ):
            useless = [name for name in given if name.startswith(prefix)]
            if useless and not used:
                raise ConfigError(
                    f"{say(useless[0])} has no effect with {protocol}={self.security_protocol}; "
                    f"set {protocol} to {protocols}"
                )
        self._check_tls(given, say)
        if self.uses_sasl:
            self._check_sasl(given, say)

    def _check_tls(self, given: Collection[str], say: Say) -> None:
        if self.ssl_context is not None:
            others = [name for name in given if name.startswith("ssl_") and name != "ssl_context"]
            if others:
                raise ConfigError(
                    f"{say(others[0])} cannot be set together with {say('ssl_context')}, which decides it"
                )
        if self.ssl_certificate_location is None:
            for name in ("ssl_key_location", "ssl_key_password"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{say(name)} needs {say('ssl_certificate_location')}")

    def _check_sasl(self, given: Collection[str], say: Say) -> None:
        if self.sasl_mechanism is None:
            raise ConfigError(f"{say('sasl_mechanism')} is missing: set it to one of {', '.join(MECHANISMS)}")
        by_password = self.sasl_mechanism in PASSWORD_MECHANISMS
        password, token = ("sasl_username", "sasl_password"), ("sasl_oauth_token_provider",)
        needed, useless = (password, (*token, "sasl_oauth_extensions")) if by_password else (token, password)
        mechanism = f"{say('sasl_mechanism')}={self.sasl_mechanism}"
        for name in needed:
            if getattr(self, name) is None:
                raise ConfigError(f"{say(name)} is missing: {mechanism} needs it")
        for name in useless:
            if name in given:
                raise ConfigError(f"{say(name)} has no effect with {mechanism}")


def _one_of(*choices: str) -> Callable[[str, Any], str]:
    def parse(name: str, value: Any) -> str:
        found = exact(value).upper() if isinstance(value, str) else None
        if found not in choices:
            raise ConfigError(f"{name}: {value!r} is not one of {', '.join(choices)}")
        return found

    return parse


def _secret(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return None if value is None else exact(value)
    raise ConfigError(f"{name} must be a non-empty string")


def _login(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value and "\0" not in value):
        return None if value is None else exact(value)
    raise ConfigError(f"{name} must be a non-empty string without NUL, not {value!r}")


def _path(name: str, value: Any) -> str | None:
    if value is None:
        return None
    text = value.__fspath__() if hasattr(value, "__fspath__") else value
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{name}: {value!r} is not the path of a file")
    return exact(text)


def _token_provider(name: str, value: Any) -> Callable[[], str] | None:
    if isinstance(value, str) and ":" in value:
        value = imported(name, value)
    if value is None:
        return None
    if callable(value):
        provider: Callable[[], str] = value
        return provider
    raise ConfigError(
        f"{name} must be a function without parameters that returns a token, as it is or as 'module:function', "
        f"not {type(value).__name__}"
    )


def _extensions(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair):
        return tuple(sorted((exact(key), exact(text)) for key, text in value.items()))
    raise ConfigError(f"{name} must be a mapping of str to str, not {type(value).__name__}")


def _endpoint_identification(name: str, value: Any) -> str:
    """Accept an empty str (Kafka's value for off) and "none" (librdkafka's)."""
    if value is None or (isinstance(value, str) and value.lower() in ("https", "none", "")):
        return "https" if value and value.lower() == "https" else "none"
    raise ConfigError(f"{name}: {value!r} is not one of https, none")


def _context(name: str, value: Any) -> ssl.SSLContext | None:
    if value is None or isinstance(value, ssl.SSLContext):
        return value
    raise ConfigError(f"{name} must be an ssl.SSLContext, not {type(value).__name__}")


SECURITY_PARSERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "security_protocol": _one_of(*PROTOCOLS),
    "sasl_mechanism": _one_of(*MECHANISMS),
    "sasl_username": _login,
    "sasl_password": _secret,
    "sasl_oauth_token_provider": _token_provider,
    "sasl_oauth_extensions": _extensions,
    "ssl_ca_location": _path,
    "ssl_certificate_location": _path,
    "ssl_key_location": _path,
    "ssl_key_password": _secret,
    "ssl_endpoint_identification_algorithm": _endpoint_identification,
    "ssl_context": _context,
}
"""Functions of the setting's name, as written, and its value; in the order of the fields."""

assert list(SECURITY_PARSERS) == [each.name for each in fields(SecurityConfig)]
