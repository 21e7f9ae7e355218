"""Import the function that a setting names, as in a properties file."""

from __future__ import annotations

import importlib
import operator
from typing import Any

from dualwrite.errors import ConfigError
from dualwrite.exact import exact
from dualwrite.shown import shown


def imported(name: str, value: str) -> Any:
    """Return the function that a text `module:function` names. Raises ConfigError."""
    module, _, function = exact(value).partition(":")
    try:
        return operator.attrgetter(function)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name}: {shown(value)} cannot be imported: {error}") from error
