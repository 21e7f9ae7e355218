"""ARCHITECTURE.md against the code: its arrows are the imports, and what it points to exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGES = ("dualwrite", "spark_sink")
PATH = re.compile(r"`((?:dualwrite|spark_sink|tests|docs|benchmarks|examples)/[a-z0-9_/.]*)`")


def arrows() -> dict[str, set[str]]:
    """What each package may import, by the table of the map."""
    table = MAP.partition("| package | may import |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([\w.]+)`", line) for line in table.splitlines()[2:]]
    return {package: set(allowed) for package, *allowed in rows}


ARROWS = arrows()


def package_of(module: str) -> str:
    """The row of the table that a module belongs to; `dualwrite` for the modules directly in it."""
    return next((row for row in ARROWS if module == row or module.startswith(f"{row}.")), module.partition(".")[0])


def imports() -> Iterator[tuple[str, str]]:
    """Every import of the product's modules by one another, those for type checkers included."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.walk(ast.parse(file.read_text())):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                yield from ((module, name) for name in names if name.partition(".")[0] in PACKAGES)


def test_every_package_of_the_table_exists() -> None:
    assert len(ARROWS) >= 6
    assert all((ROOT / row.replace(".", "/")).is_dir() for row in ARROWS)


def test_the_arrows_are_the_imports() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, imported in imports()
        if package_of(module) in ARROWS
        and package_of(imported) not in ARROWS[package_of(module)] | {package_of(module)}
    ]
    assert not wrong


def test_no_arrow_is_left_that_nothing_needs() -> None:
    used = {(package_of(module), package_of(imported)) for module, imported in imports()}
    assert [(row, allowed) for row, to in ARROWS.items() for allowed in to if (row, allowed) not in used] == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_what_the_page_points_to_exists(page: str) -> None:
    named = PATH.findall((ROOT / page).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
