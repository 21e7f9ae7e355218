"""Whether a statement changes settings of the session, which would then hold for the blocks after it in its group."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_SPACE: Final = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/|;)*"
_CHANGES: Final = re.compile(rf"(?:\A|;){_SPACE}(?:set|reset|discard)\b|\bset_config\s*\(", re.IGNORECASE | re.DOTALL)


@lru_cache(maxsize=1024)
def changes_settings(text: str) -> bool:
    """Return whether `text` has SET, RESET, DISCARD or set_config(); the body of a function is not looked into.

    It may also say so of a statement that does not, such as a text literal with `; SET`.
    """
    return _CHANGES.search(text) is not None
