"""No module of the emulator's core imports itself through others, imports for type checking included."""

from __future__ import annotations

import ast
from pathlib import Path

import dualwrite.broker_emulator as package

ROOT = Path(package.__file__).parent
NAME = package.__name__
CORE = ("api", "cluster", "net", "process", "storage")


def modules() -> dict[str, Path]:
    """Return the files of the emulator by the names of their modules."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join((NAME, *parts)).removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the emulator that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                names.add(module if module in known else node.module)
    return names & known.keys()


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Return every module that `start` imports, directly or through others."""
    found: set[str] = set()
    rest = [start]
    while rest:
        new = graph[rest.pop()] - found
        found |= new
        rest.extend(new)
    return found


def test_the_core_has_no_import_cycles() -> None:
    known = modules()
    graph = {name: imported(path, known) - {name} for name, path in known.items()}
    core = [name for name in known if name.removeprefix(f"{NAME}.").partition(".")[0] in CORE]
    assert len(core) > len(CORE)
    assert [name for name in core if name in reachable(name, graph)] == []
