"""The distributions of `make dist`: each module is in one, and a production install carries no test tools."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_namespace_packages

from tests.support.import_graph import source_files

ROOT = Path(__file__).parents[2]
NAMES = ["dualwrite", "dualwrite-emulator", "dualwrite-testing", "dualwrite-spark"]

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked sdist is not split again")


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The project that each distribution is built from."""
    script = runpy.run_path(str(ROOT / ".ci" / "distributions.py"))
    return {folder.name: folder for folder in script["stage_all"](tmp_path_factory.mktemp("stages"))}


def pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def packages(folder: Path) -> list[str]:
    """Return the packages that setuptools puts into the wheel of a project."""
    find = pyproject(folder)["tool"]["setuptools"]["packages"]["find"]
    return list(find_namespace_packages(str(folder), find.get("exclude", ()), find["include"]))


def test_each_module_is_in_one_distribution(staged: dict[str, Path]) -> None:
    assert list(staged) == NAMES
    carried = Counter(package for folder in staged.values() for package in packages(folder))
    assert [package for package, times in carried.items() if times > 1] == []
    modules = source_files("dualwrite", "spark_sink")
    held = {name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in modules.items()}
    assert held - carried.keys() == set()


def test_a_production_install_carries_no_emulator_no_test_tools_and_no_spark(staged: dict[str, Path]) -> None:
    carried = packages(staged["dualwrite"])
    others = ("dualwrite.broker_emulator", "dualwrite.testing", "spark_sink")
    assert [package for package in carried if package.startswith(others)] == []
    whole = pyproject(staged["dualwrite"])
    assert "entry-points" not in whole["project"] or whole["project"]["entry-points"] == {}
    assert [each for each in whole["tool"]["setuptools"]["package-data"]["dualwrite"] if "emulator" in each] == []


def test_the_extras_install_the_others_in_the_same_version(staged: dict[str, Path]) -> None:
    project = pyproject(staged["dualwrite"])["project"]
    extras, same = project["optional-dependencies"], f"=={project['version']}"
    assert extras["emulator"] == [f"dualwrite-emulator{same}"]
    assert extras["pytest"] == [f"dualwrite-testing{same}"]
    assert f"dualwrite-spark{same}" in extras["spark-cluster"]
    assert f"dualwrite-spark{same}" in extras["cli"]
    for name in NAMES:
        assert pyproject(staged[name])["project"]["version"] == project["version"]


def test_the_other_distributions_replace_their_extras(staged: dict[str, Path]) -> None:
    extras = pyproject(ROOT)["project"]["optional-dependencies"]
    emulator, testing = (pyproject(staged[name])["project"] for name in ("dualwrite-emulator", "dualwrite-testing"))
    assert emulator["dependencies"] == extras["emulator"]
    assert set(extras["pytest"]) < set(testing["dependencies"])
    assert testing["entry-points"]["pytest11"] == {"dualwrite": "dualwrite.testing.pytest_plugin"}


def test_the_sdist_has_documentation_examples_and_tests(staged: dict[str, Path]) -> None:
    listed = (staged["dualwrite"] / "MANIFEST.in").read_text()
    for file in ("docs/guarantees.md", "examples/quickstart.py", "tests/conftest.py", "Makefile", ".ci/run"):
        assert f"include {file}\n" in listed


def test_a_description_built_by_github_has_absolute_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.com")
    monkeypatch.setenv("GITHUB_REPOSITORY", "me/dualwrite")
    monkeypatch.setenv("GITHUB_SHA", "abc")
    folders = runpy.run_path(str(ROOT / ".ci" / "distributions.py"))["stage_all"](tmp_path)
    readme = (folders[0] / "README.md").read_text()
    assert "(https://github.com/me/dualwrite/blob/abc/docs/choosing.md)" in readme
    assert "(https://github.com/me/dualwrite/raw/abc/docs/pictures/dual-write.svg)" in readme
    assert re.findall(r"\]\((?!https://)[^)]*", readme) == []
    assert all(
        pyproject(each)["project"]["urls"]["Repository"] == "https://github.com/me/dualwrite" for each in folders
    )


def test_a_distribution_in_another_directory_is_found(staged: dict[str, Path], tmp_path: Path) -> None:
    for name in ("dualwrite", "dualwrite-emulator"):
        for package in packages(staged[name]):
            target = tmp_path / name / package.replace(".", "/")
            target.mkdir(parents=True, exist_ok=True)
            for file in (staged[name] / package.replace(".", "/")).glob("*.*"):
                (target / file.name).write_bytes(file.read_bytes())
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'dualwrite')!r}, {str(tmp_path / 'dualwrite-emulator')!r}]\n"
        "import dualwrite.errors, dualwrite.broker_emulator.emulator\n"
        "print(dualwrite.errors.__file__, dualwrite.broker_emulator.emulator.__file__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [
        str(tmp_path / "dualwrite" / "dualwrite" / "errors.py"),
        str(tmp_path / "dualwrite-emulator" / "dualwrite" / "broker_emulator" / "emulator.py"),
    ], done.stderr
