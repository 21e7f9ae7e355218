"""Docstrings and comments name the things they speak of: a record, a client, a row, and not "what" or "who"."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DESCRIBED = re.compile(r"\b(?:what|whatever|who|whoever|whom|nobody|somebody)\b", re.IGNORECASE)

MOST_IN_1000_WORDS = 1.0
FOLDERS = [
    *(f"dualwrite/{folder}" for folder in ("broker_emulator", "cli", "client", "recipes", "testing", "verify")),
    *("spark_sink", "benchmarks", "examples", "tests"),
]


def texts(path: Path) -> Iterator[str]:
    """Yield the docstrings and the comments of a module."""
    source = path.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield docstring
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from (token.string for token in tokens if token.type == tokenize.COMMENT)


@pytest.mark.parametrize("folder", FOLDERS)
def test_things_are_named(folder: str) -> None:
    words = 0
    found: list[str] = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for text in texts(path):
            words += len(text.split())
            for match in DESCRIBED.finditer(text):
                around = " ".join(text[max(0, match.start() - 60) : match.end() + 60].split())
                found.append(f"{path.relative_to(ROOT)}: ...{around}...")
    assert 1000 * len(found) / words <= MOST_IN_1000_WORDS, "\n".join(found)
