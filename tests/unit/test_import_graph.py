"""The import graph that tests of the architecture and `benchmarks.paths` read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.import_graph import external_imports, import_cycles, import_graph, source_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A package with every kind of import."""
    sources = {
        "house/__init__.py": "",
        "house/hall.py": "import json\nfrom house import kitchen\n",
        "house/kitchen.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.hall import Door\n",
        "house/cellar/__init__.py": "from .wine import Bottle\n",
        "house/cellar/wine.py": "def fetch():\n    from ..hall import Door\n    from house.cellar import Bottle\n",
        "house/attic.py": "import house.cellar.wine\n",
    }
    for name, text in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_an_edge_is_an_import_wherever_it_stands(root: Path) -> None:
    assert import_graph("house", root=root) == {
        "house": set(),
        "house.hall": {"house.kitchen"},
        "house.kitchen": {"house.hall"},
        "house.cellar": {"house.cellar.wine"},
        "house.cellar.wine": {"house.hall", "house.cellar"},
        "house.attic": {"house.cellar.wine"},
    }


def test_external_imports_are_named_by_their_package(root: Path) -> None:
    files = source_files("house", root=root)
    assert external_imports("house.hall", files["house.hall"]) == {"json", "house"}


def test_cycles_are_the_strongly_connected_components(root: Path) -> None:
    assert import_cycles(import_graph("house", root=root)) == [
        ["house.cellar", "house.cellar.wine"],
        ["house.hall", "house.kitchen"],
    ]
    assert import_cycles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}) == [["a", "b", "c"]]
    assert import_cycles({"a": ["a", "b"], "b": []}) == []
