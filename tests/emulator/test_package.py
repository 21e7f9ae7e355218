"""The public names of the package, which imports them on first access."""

from __future__ import annotations

import subprocess
import sys

import dualwrite.broker_emulator as package


def test_every_name_can_be_had() -> None:
    for name in package.__all__:
        assert getattr(package, name).__name__ == name


def test_the_command_line_is_parsed_before_the_emulator_is_loaded() -> None:
    loaded = "import dualwrite.broker_emulator, sys; print({'kio.static', 'asyncio'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).strip() == "set()"
