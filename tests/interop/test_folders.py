"""The clients' folders and the page are true about themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from .cases import KNOWN_FAILURES, MUST_PASS
from .client_folders import ALL_FOLDERS, CLIENT_FOLDERS, ROOT, ClientFolder
from .differences import as_tables

PAGE = ROOT.parent.parent / "docs" / "internals" / "interop.md"

each_folder = pytest.mark.parametrize("client", CLIENT_FOLDERS, ids=lambda client: client.folder)


def existing_cases(client: ClientFolder) -> set[str]:
    """The tests in the folder, by their names as cases."""
    return {
        f"{file.stem.removeprefix('test_')}/{name.removeprefix('test_')}"
        for file in sorted((ROOT / client.folder).glob("test_*.py"))
        for name in _tests_in(import_module(f"tests.interop.{client.folder}.{file.stem}"))
    }


def _tests_in(module: ModuleType) -> Iterator[str]:
    for name, member in vars(module).items():
        if name.startswith("test_") and inspect.isfunction(member):
            yield name
        if name.startswith("Test") and inspect.isclass(member):
            yield from (each for each in dir(member) if each.startswith("test_"))


@each_folder
def test_what_is_listed_exists_and_what_exists_is_listed(client: ClientFolder) -> None:
    must_pass, known = MUST_PASS[client.folder], KNOWN_FAILURES.get(client.folder, {})
    assert not must_pass & known.keys() - {case for case, failure in known.items() if len(failure.on) == 1}
    assert must_pass | known.keys() == existing_cases(client)


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
