"""The names that `import dualwrite` provides, and its loaded modules."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import dualwrite
from dualwrite import errors

ROOT = Path(__file__).parents[2]


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; before = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_other_module() -> None:
    loaded = loaded_by("import dualwrite")
    assert {name for name in loaded if name.startswith("dualwrite")} == {"dualwrite"}
    assert not {name.partition(".")[0] for name in loaded} & {"asyncio", "kafka", "aiokafka", "uvloop", "sqlalchemy"}


def test_an_error_or_a_prepared_state_costs_no_client() -> None:
    loaded = loaded_by("from dualwrite import FencedError, PreparedTxnState, Tier")
    assert not {name.partition(".")[0] for name in loaded} & {"asyncio", "kafka", "aiokafka", "uvloop", "sqlalchemy"}


def test_type_checkers_and_python_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "dualwrite" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(seen) == dualwrite.__all__
    for name, module in seen.items():
        assert getattr(import_module(module or ""), name) is getattr(dualwrite, name)


def test_every_error_is_a_public_name() -> None:
    exceptions = {name for name, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)}
    assert exceptions <= set(dualwrite.__all__)


def test_dir_shows_public_names_only() -> None:
    assert [name for name in dir(dualwrite) if not name.startswith("__")] == dualwrite.__all__


STAR = """
import sys
for package in {missing}:
    sys.modules[package] = None  # as where it is not installed
before = set(globals())
from dualwrite import *
print(*sorted(set(globals()) - before - {{"before", "package"}}))
"""


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        (("asyncpg",), {"AsyncpgDualWriter"}),
        (("sqlalchemy", "psycopg", "asyncpg"), None),
    ],
)
def test_a_star_import_gets_the_importable_names(missing: tuple[str, ...], gone: set[str] | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STAR.format(missing=missing)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    imported = set(done.stdout.split())
    if gone is None:
        assert {name for name in imported if name.endswith(("Writer", "Pool", "Write", "Service"))} == set()
        assert {"Producer", "AsyncProducer", "TransactionAdmin", "Outbox", "FencedError"} <= imported
    else:
        assert imported == set(dualwrite.__all__) - gone


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        dualwrite.Consumer  # noqa: B018


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [each for each in sys.modules if each == "asyncpg" or each.startswith("asyncpg.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "asyncpg", None)  # as where it is not installed
    for module in [each for each in sys.modules if each.startswith("dualwrite.recipes.asyncpg")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(vars(dualwrite), "AsyncpgDualWriter", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dualwrite\[asyncpg\]'") as raised:
        dualwrite.AsyncpgDualWriter  # noqa: B018
    assert str(raised.value).startswith("dualwrite.AsyncpgDualWriter needs the package asyncpg")


def test_the_wheel_needs_nothing_of_the_checkout() -> None:
    """Code that installs servers for this project's own tests belongs to `tests/support`, and so do its callers."""
    for package in ("dualwrite", "spark_sink"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
            names = {alias.name for node in imported for alias in node.names}
            names |= {node.module or "" for node in imported if isinstance(node, ast.ImportFrom)}
            assert not {name.partition(".")[0] for name in names} & {"tests", "examples", "benchmarks"}, path
            assert "apt-get" not in text, path
            assert '"mvn"' not in text, path


def test_the_oldest_sqlalchemy_is_the_one_that_is_tested() -> None:
    """`make test-sqlalchemy-floor` runs with the oldest release in pyproject.toml, and the extras allow the same."""
    (oldest,) = re.findall(r"^OLDEST_SQLALCHEMY := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [package for packages in extras.values() for package in packages if package.startswith("sqlalchemy")]
    assert {package.partition(">=")[2] for package in named} == {oldest}
    assert len(named) == 5
