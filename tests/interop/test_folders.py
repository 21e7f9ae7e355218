"""The clients' folders and the page are true about themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from .client_folders import CLIENT_FOLDERS, ROOT
from .differences import as_tables
from .known_failures import KNOWN_FAILURES

PAGE = ROOT.parent.parent / "docs" / "internals" / "interop.md"


@pytest.mark.parametrize("client", CLIENT_FOLDERS)
def test_readme_names_its_command_and_known_failures(client: str) -> None:
    readme = (ROOT / client / "README.md").read_text()
    assert f"pytest tests/interop/{client}" in readme
    for case in KNOWN_FAILURES.get(client, {}):
        assert case in readme


@pytest.mark.parametrize("lock", [ROOT / "kafkajs" / "package-lock.json"], ids=lambda path: path.name)
def test_lock_files_name_no_registry(lock: Path) -> None:
    assert '"resolved"' not in lock.read_text()


def test_the_page_has_the_tables_of_differences() -> None:
    assert as_tables() in PAGE.read_text(), "run: python -m tests.interop.differences"
