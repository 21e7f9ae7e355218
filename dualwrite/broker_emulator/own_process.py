"""For a process that is nothing but a broker."""

from __future__ import annotations

import sys


def start_lean() -> None:
    """To be called before the broker is imported.

    Where hypothesis is installed, kio imports it to register test strategies for its types: half of a broker's start,
    for what nobody asks for in its own process.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
