"""A small disk in memory under a directory, which can be filled: its full disk is a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FILLER: Final = "filler"
_CHUNK: Final = 1 << 20


def can_mount() -> bool:
    """Return whether this process may mount file systems, by mounting one."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        subprocess.run(["umount", directory], check=True)
        return True


class SmallDisk:
    """A file system of its own at `directory`, which keeps its contents."""

    def __init__(self, directory: Path, spare_bytes: int) -> None:
        """Mount it, with so many bytes free. Nothing may use the directory meanwhile. Raises CalledProcessError."""
        self._directory = directory
        owner, aside = directory.stat(), directory.with_name(f"{directory.name}-aside")
        subprocess.run(["cp", "-a", directory, aside], check=True)
        used = sum(file.stat().st_blocks * 512 for file in aside.rglob("*") if file.is_file())
        options = f"size={used + spare_bytes},mode=700,uid={owner.st_uid},gid={owner.st_gid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", directory], check=True)
        subprocess.run(["cp", "-a", f"{aside}/.", directory], check=True)
        shutil.rmtree(aside)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Leave not a byte free while the block runs."""
        filler = self._directory / _FILLER
        try:
            with filler.open("wb", buffering=0) as file:
                _fill(file.fileno())
            yield
        finally:
            filler.unlink()

    def unmount(self) -> None:
        """Unmount it as soon as it is not used; its contents are lost."""
        subprocess.run(["umount", "--lazy", self._directory], check=True)


def _fill(file: int) -> None:
    size = _CHUNK
    while size:
        try:
            os.write(file, bytes(size))
        except OSError:
            size //= 2
