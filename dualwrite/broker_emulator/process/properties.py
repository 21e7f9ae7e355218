"""A file of settings as Kafka's own `config/server.properties` is one: Java properties."""

from __future__ import annotations

from pathlib import Path


def read_properties(path: str | Path) -> dict[str, str]:
    """The settings of a file, by Java's rules: continued lines, escapes, `=`, `:` or space behind a name.

    Raises ValueError with a sentence where it cannot be read, is not of that form, or the package javaproperties is
    missing.
    """
    try:
        import javaproperties  # nobody needs it who has no such file
    except ModuleNotFoundError:
        raise ValueError(
            f"{path} cannot be read without the package javaproperties: pip install 'dualwrite[emulator]'"
        ) from None
    try:
        with Path(path).open("rb") as file:
            found: dict[str, str] = javaproperties.load(file)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is no file of settings: {error}") from error
    return {name: text.strip() for name, text in found.items()}
