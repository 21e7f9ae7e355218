"""The import graph of the project's packages and its cycles, read from source.

An edge goes from a module to each module that one of its `import` statements names, wherever the statement stands: at
the top, inside a function, or under `if TYPE_CHECKING`. Imports of a package's `__init__` that Python performs by
itself on the way to a submodule are no edges.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The directory with the project's packages."""

Graph = Mapping[str, Collection[str]]
"""The modules that each module imports; only modules of the packages that were read."""


def source_files(*packages: str, root: Path = ROOT) -> dict[str, Path]:
    """Return the files of the packages by the dotted name of their module."""
    paths = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    return {_module_name(path.relative_to(root)): path for path in paths}


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(*packages: str, root: Path = ROOT) -> dict[str, set[str]]:
    """Return the import graph of the packages, restricted to their own modules."""
    files = source_files(*packages, root=root)
    return {module: {*_imported(module, path, files)} - {module} for module, path in files.items()}


def external_imports(module: str, path: Path) -> set[str]:
    """Return the top-level names of all imports of one module, its own package included."""
    return {name.partition(".")[0] for name, _ in _import_statements(module, path)}


def _imported(module: str, path: Path, files: Collection[str]) -> Iterator[str]:
    for base, name in _import_statements(module, path):
        submodule = f"{base}.{name}"
        if name and submodule in files:
            yield submodule
        elif base in files:
            yield base


def _import_statements(module: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the targets of each import: a module, and the name that is taken from it ("" for a plain `import`)."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            yield from ((base, alias.name) for alias in node.names)


def import_cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one module, the largest first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    cycles: list[list[str]] = []
    for start in sorted(graph):
        if start in index:
            continue
        path = [(start, iter(sorted(graph[start])))]
        index[start] = lowest[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while path:
            module, successors = path[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = lowest[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    path.append((successor, iter(sorted(graph[successor]))))
                    break
                if successor in on_stack:
                    lowest[module] = min(lowest[module], index[successor])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[module])
                if lowest[module] == index[module]:
                    position = stack.index(module)
                    component, stack[position:] = sorted(stack[position:]), []
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        cycles.append(component)
    return sorted(cycles, key=lambda cycle: (-len(cycle), cycle))
