"""The clients' folders and the page are true about themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from .client_folders import ALL_FOLDERS, CLIENT_FOLDERS, ROOT, ClientFolder
from .differences import as_tables
from .known_failures import KNOWN_FAILURES

PAGE = ROOT.parent.parent / "docs" / "internals" / "interop.md"

each_folder = pytest.mark.parametrize("client", CLIENT_FOLDERS, ids=lambda client: client.folder)


@each_folder
def test_readme_names_its_version_and_its_command(client: ClientFolder) -> None:
    readme = (ROOT / client.folder / "README.md").read_text()
    assert f"python -m tests.interop {client.folder}" in readme
    for case in KNOWN_FAILURES.get(client.folder, {}):
        assert case in readme


@pytest.mark.parametrize("lock", [ROOT / "kafkajs" / "package-lock.json"], ids=lambda path: path.name)
def test_lock_files_name_no_registry(lock: Path) -> None:
    assert '"resolved"' not in lock.read_text()


def test_the_page_has_the_tables_of_differences() -> None:
    assert as_tables() in PAGE.read_text(), "run: python -m tests.interop.differences"


def test_the_page_has_a_row_for_each_client() -> None:
    page = PAGE.read_text()  # its versions are the measured ones
    assert not [client.name for client in ALL_FOLDERS if f"\n| {client.name} | " not in page]
