"""ARCHITECTURE.md against the code: its arrows are the imports, and the files that it names exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.import_graph import external_imports, import_cycles, import_graph, source_files

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGES = ("dualwrite", "spark_sink")
PATH = re.compile(r"`((?:dualwrite|spark_sink|tests|docs|benchmarks|examples)/[a-z0-9_/.]*)`")
RECIPES = "dualwrite.recipes"
DATABASE_LIBRARIES = {"sqlalchemy", "psycopg", "asyncpg", "pymysql", "sqlite3", "django"}
IN_LAYERS = ("dualwrite.client", RECIPES, "dualwrite.broker_emulator", "spark_sink")
"""Packages whose folders are layers: no arrow between two of them runs upward."""


def arrows() -> dict[str, set[str]]:
    """Return the permitted imports of each package, by the table of the map."""
    table = MAP.partition("| package | may import |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([\w.]+)`", line) for line in table.splitlines()[2:]]
    return {package: set(allowed) for package, *allowed in rows}


ARROWS = arrows()


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The imports of the product's modules, those for type checkers included."""
    return import_graph(*PACKAGES)


def package_of(module: str) -> str:
    """Return the row of the table that a module belongs to; `dualwrite` for the modules directly in it."""
    return next((row for row in ARROWS if module == row or module.startswith(f"{row}.")), module.partition(".")[0])


def used_arrows(graph: dict[str, set[str]]) -> dict[tuple[str, str], str]:
    """Return every arrow between packages, with one import that makes it."""
    return {
        (package_of(module), package_of(imported)): f"{module} imports {imported}"
        for module, all_imported in graph.items()
        for imported in all_imported
        if package_of(module) != package_of(imported)
    }


def test_every_package_of_the_table_exists() -> None:
    assert len(ARROWS) >= 6
    assert all((ROOT / row.replace(".", "/")).is_dir() for row in ARROWS)


def test_the_arrows_are_the_imports(graph: dict[str, set[str]]) -> None:
    used = {arrow: example for arrow, example in used_arrows(graph).items() if arrow[0] in ARROWS}
    assert [example for (row, to), example in used.items() if to not in ARROWS[row]] == []
    assert [(row, to) for row, allowed in ARROWS.items() for to in allowed if (row, to) not in used] == []


def test_no_module_imports_itself_through_others(graph: dict[str, set[str]]) -> None:
    assert import_cycles(graph) == []


def folders_of(package: str) -> dict[str, set[str]]:
    """Return the folders of a package, each with the neighbours that its docstring says it imports."""
    found = {}
    for path in sorted((ROOT / package.replace(".", "/")).glob("*/__init__.py")):
        says = (ast.get_docstring(ast.parse(path.read_text())) or "").rpartition("\nImports of its neighbours: ")[2]
        found[path.parent.name] = set(re.findall(r"`(\w+)`", says))
    return found


def imported_neighbours(package: str, graph: dict[str, set[str]], folders: set[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {folder: set() for folder in folders}
    for module, imported in graph.items():
        folder = _folder_in(package, module)
        if folder in folders:
            found[folder] |= {_folder_in(package, name) for name in imported} & folders - {folder}
    return found


def _folder_in(package: str, module: str) -> str:
    return module.removeprefix(f"{package}.").partition(".")[0] if module.startswith(f"{package}.") else ""


@pytest.mark.parametrize("package", IN_LAYERS)
def test_each_folder_says_which_neighbours_it_imports(package: str, graph: dict[str, set[str]]) -> None:
    said = folders_of(package)
    assert imported_neighbours(package, graph, set(said)) == said


@pytest.mark.parametrize("package", IN_LAYERS)
def test_no_folder_imports_itself_through_its_neighbours(package: str) -> None:
    assert import_cycles(folders_of(package)) == []


@pytest.mark.parametrize("folder", ["core", "sql", "pool", "postgres"])
def test_folders_that_databases_or_drivers_share_import_none_of_them(folder: str) -> None:
    files = source_files(*PACKAGES)
    here = [name for name in files if name.startswith(f"{RECIPES}.{folder}.")]
    assert len(here) > 4
    for module in here:
        assert not external_imports(module, files[module]) & DATABASE_LIBRARIES, module


@pytest.mark.parametrize("folder", ["driver", "attempt"])
def test_the_steps_of_a_batch_know_only_the_port_of_the_store(folder: str) -> None:
    files = source_files("spark_sink")
    here = [name for name in files if name.startswith(f"spark_sink.{folder}.")]
    assert len(here) > 2
    for module in here:
        at_import = set(_imported_at_once(files[module]))
        assert not {name.partition(".")[0] for name in at_import} & DATABASE_LIBRARIES, module
        assert "spark_sink.store.commit_store" not in at_import, module


def test_the_sink_uses_one_module_of_the_recipes(graph: dict[str, set[str]]) -> None:
    used = {name for module in graph if package_of(module) == "spark_sink" for name in graph[module]}
    assert {name for name in used if name.startswith(f"{RECIPES}.")} == {f"{RECIPES}.sqlalchemy.deciding"}


def _imported_at_once(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports when it is imported itself: not for type checkers, nor in a function."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield statement.module or ""


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_on_the_page_exists(page: str) -> None:
    named = PATH.findall((ROOT / page).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
