"""What `import spark_sink` costs, and what it offers."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

import spark_sink
from spark_sink import errors

ROOT = Path(__file__).parents[2]
HEAVY = ("pyspark", "pyarrow", "sqlalchemy", "kafka")


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, spark_sink, spark_sink.errors; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", spark_sink.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(spark_sink, name).__name__.lower().endswith(name.lower())
    assert name in dir(spark_sink)


@pytest.mark.parametrize("name", [name for name in vars(errors) if name.endswith("Error") and name != "DualWriteError"])
def test_every_error_can_be_caught_by_its_public_name(name: str) -> None:
    assert getattr(spark_sink, name) is getattr(errors, name)


def test_the_extra_has_what_pyspark_needs_for_arrow() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[^a-z0-9-]", requirement)[0] for extra in ("spark", "arrow") for requirement in extras[extra]}
    assert named >= {"pyspark", "pandas", "pyarrow"}, "mapInArrow refuses to run without pandas"


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Flink'"):
        spark_sink.Flink  # noqa: B018 - asking is the test


def test_workers_of_another_python_are_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark takes `python3` of the PATH; in an environment that is not activated that is another one."""
    from spark_sink.face import warn_of_another_python

    another = tmp_path / "python3"
    another.write_text("")
    another.chmod(0o755)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_another_python(sys.executable)
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
        warn_of_another_python("python3")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(UserWarning, match=f"which is {another}.*PYSPARK_PYTHON"):
        warn_of_another_python("python3")
