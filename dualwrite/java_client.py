"""Translate settings of Kafka's Java client to settings of this client.

Operators have its properties files, and Spark users write its names. Settings with other names are translated; files
that only Java can read are refused with a remedy. Secrets appear in no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dualwrite.errors import ConfigError

_JAAS: Final = re.compile(
    r"\s*org\.apache\.kafka\.common\.security\.(?P<kind>plain\.Plain|scram\.Scram)LoginModule\s+required\s+(?P<options>.*);\s*",
    re.DOTALL,
)
_OPTION: Final = re.compile(
    r"(?P<name>\w+)\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s;]+))"
)

_STORES: Final = {
    "ssl.truststore.location": ("ssl.truststore.type", "ssl.ca.location"),
    "ssl.keystore.location": ("ssl.keystore.type", "ssl.certificate.location"),
}


def translated(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a Java client's properties correspond to. Raises ConfigError if only Java reads one."""
    settings = dict(properties)
    jaas = settings.pop("sasl.jaas.config", None)
    if jaas is not None:
        settings |= _login(jaas)
    for location, (kind, ours) in _STORES.items():
        store_kind = settings.pop(kind, "JKS")
        if location in settings:
            if store_kind.upper() != "PEM":
                raise ConfigError(
                    f"{location} is a {store_kind} file, which only Java reads; convert it to PEM "
                    f"(with keytool and openssl) and set {ours} to it"
                )
            settings[ours] = settings.pop(location)
    return settings


def _login(jaas: str) -> dict[str, str]:
    found = _JAAS.fullmatch(jaas)
    options = {
        option["name"]: _value(option) for option in _OPTION.finditer(found["options"] if found is not None else "")
    }
    if not {"username", "password"} <= options.keys():
        raise ConfigError(
            "sasl.jaas.config is supported for PlainLoginModule and ScramLoginModule with username and password; "
            "for others, set sasl.mechanism and the settings that it needs (docs/security.md)"
        )
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _value(option: re.Match[str]) -> str:
    if option["quoted"] is not None:
        return re.sub(r"\\(.)", r"\1", option["quoted"])
    return option["single"] if option["single"] is not None else option["bare"]
