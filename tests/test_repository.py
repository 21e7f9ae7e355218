"""The files that surround the code agree with each other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text()


def test_pre_commit_runs_the_ruff_that_lint_runs() -> None:
    (hook,) = re.findall(r"ruff-pre-commit\n +rev: v(\S+)", read(".pre-commit-config.yaml"))
    assert f'"ruff=={hook}"' in read("pyproject.toml")


def test_ci_runs_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+)(?=[^=\n]*:(?!=))", read("Makefile"), re.MULTILINE))
    for file in (".ci/run", ".github/workflows/ci.yml", "CONTRIBUTING.md", "README.md"):
        run = set(re.findall(r"(?:^|\$ |run: )make ([a-z-]+)", read(file), re.MULTILINE))
        assert run, file
        assert run <= targets, file


def test_the_lists_of_python_versions_agree() -> None:
    classified = re.findall(r"Python :: (3\.\d+)", read("pyproject.toml"))
    (matrix,) = re.findall(r"python: \[(.*)\]", read(".github/workflows/ci.yml"))
    assert re.findall(r"3\.\d+", matrix) == classified


def test_every_test_listed_as_proof_only_exists() -> None:
    named = re.findall(r'"(tests/[a-z_/]+(?:\.py)?)', read("tests/support/proof_only.py"))
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_lines_of_the_mutants_exist() -> None:
    from tests.mutants import MUTANTS

    assert [(each.file, each.line) for each in MUTANTS if read(each.file).count(each.line) != 1] == []
