"""The shared folders of `recipes/` import no database library and no backend, and some are free of import cycles."""

from __future__ import annotations

import pytest

from tests.support.import_graph import external_imports, import_cycles, import_graph, source_files

RECIPES = "dualwrite.recipes"
DATABASE_LIBRARIES = {"sqlalchemy", "psycopg", "rocksdict", "kazoo", "asyncpg", "pymysql", "sqlite3"}
BACKENDS = {"sqlalchemy", "psycopg", "stores", "transactional", "consume", "recovery"}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return import_graph("dualwrite")


def folder_of(module: str) -> str:
    return module.removeprefix(f"{RECIPES}.").partition(".")[0]


@pytest.mark.parametrize("folder", ["sql", "core"])
def test_shared_folders_know_no_database(folder: str, graph: dict[str, set[str]]) -> None:
    files = source_files("dualwrite")
    for module in (name for name in files if name.startswith(f"{RECIPES}.{folder}.")):
        assert not external_imports(module, files[module]) & DATABASE_LIBRARIES, module
        assert not {folder_of(name) for name in graph[module] if name.startswith(RECIPES)} & BACKENDS, module


def test_folders_without_import_cycles(graph: dict[str, set[str]]) -> None:
    cycles = [cycle for cycle in import_cycles(graph) if cycle[0].startswith(RECIPES)]
    assert not [
        cycle for cycle in cycles if {folder_of(name) for name in cycle} & {"sql", "stores", "consume", "recovery"}
    ]
