"""rust-rdkafka: the program `main.rs`, built with the crates that `Cargo.lock` pins, and kept in a cache directory."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.case_program import CaseProgram
from tests.support.servers.cache import cached, find_program

_HERE: Final = Path(__file__).parent
_SOURCES: Final = (_HERE / "Cargo.toml", _HERE / "Cargo.lock", _HERE / "main.rs")
_TIMEOUT_S: Final = 1800
"""The first build compiles librdkafka, too, which takes minutes."""

(VERSION,) = re.findall(r'^rdkafka = "=(\S+)"$', _SOURCES[0].read_text(), re.MULTILINE)


def build_program() -> Path:
    """The directory with the program. Raises ServerUnavailableError."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()[:16]
    return cached(f"rust-rdkafka-{VERSION}-{digest}", _build_in)


def _build_in(work: Path) -> Path:
    cargo = find_program("cargo", "rust-rdkafka needs Rust")
    find_program("make", "rust-rdkafka builds librdkafka")
    environment = {"CARGO_TARGET_DIR": str(work / "build"), **os.environ}
    command = [cargo, "build", "--locked", "--quiet", "--manifest-path", str(_SOURCES[0])]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(f"Cargo did not build rust-rdkafka within {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("error")), "no reason given")
        raise ServerUnavailableError(f"Cargo could not build rust-rdkafka: {reason}")
    target = work / "program"
    target.mkdir()
    shutil.copy2(Path(environment["CARGO_TARGET_DIR"]) / "debug" / "rust-rdkafka", target)
    return target


def start_program() -> CaseProgram:
    """The program, waiting for cases. Raises ServerUnavailableError."""
    return CaseProgram([str(build_program() / "rust-rdkafka")])
