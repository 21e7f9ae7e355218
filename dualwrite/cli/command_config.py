"""Read a properties file of a Java client, such as `kafka-*.sh --command-config` takes, as settings of this client."""

from __future__ import annotations

from pathlib import Path

import javaproperties

from dualwrite.errors import ConfigError
from dualwrite.java_client import translated


def settings_of_file(path: str) -> dict[str, str]:
    """Return the settings of a file, by Kafka's dotted names. Raises ConfigError."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            properties: dict[str, str] = javaproperties.load(file)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"--command-config {path} cannot be read: {error}") from None
    return translated(properties)
