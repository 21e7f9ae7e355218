"""Docstrings, comments, errors, log lines, help and pages name their things: a record, a client, a row, not "what"."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DESCRIBED = re.compile(r"\b(?:what|whatever|who|whoever|whom|nobody|somebody)\b", re.IGNORECASE)

MOST_IN_1000_WORDS = 1.0
PRODUCT = [
    *(f"dualwrite/{folder}" for folder in ("broker_emulator", "cli", "client", "recipes", "testing", "verify")),
    "spark_sink",
]
FOLDERS = [*PRODUCT, "benchmarks", "examples", "tests"]
MOST_ON_PAGES = {".": 1.0, "docs": 1.0, "docs/decisions": 2.0, "docs/internals": 2.0}

LEAST_WORDS = 5
SQL = re.compile(r"\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE)\b")


def texts(path: Path) -> Iterator[str]:
    """Yield the docstrings and the comments of a module."""
    source = path.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield docstring
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from (token.string for token in tokens if token.type == tokenize.COMMENT)


def sentences(path: Path) -> Iterator[str]:
    """Yield the strings of a module that a reader sees: errors, log lines and help, but no docstrings and no SQL."""
    tree = ast.parse(path.read_text())
    inside = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    skipped = inside | {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            text = node.value
        else:
            continue
        if len(text.split()) >= LEAST_WORDS and not SQL.search(text):
            yield text


def prose(page: Path) -> Iterator[str]:
    """Yield the text of a page, without code and without the targets of links."""
    yield re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", page.read_text(), flags=re.DOTALL)


def assert_named(
    paths: Iterable[Path], read: Callable[[Path], Iterator[str]], most: float = MOST_IN_1000_WORDS
) -> None:
    words = 0
    found: list[str] = []
    for path in sorted(paths):
        for text in read(path):
            words += len(text.split())
            for match in DESCRIBED.finditer(text):
                around = " ".join(text[max(0, match.start() - 60) : match.end() + 60].split())
                found.append(f"{path.relative_to(ROOT)}: ...{around}...")
    assert 1000 * len(found) / words <= most, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments_name_things(folder: str) -> None:
    assert_named((ROOT / folder).rglob("*.py"), texts)


@pytest.mark.parametrize("folder", PRODUCT)
def test_errors_log_lines_and_help_name_things(folder: str) -> None:
    assert_named((ROOT / folder).rglob("*.py"), sentences)


@pytest.mark.parametrize("folder", MOST_ON_PAGES)
def test_pages_name_things(folder: str) -> None:
    assert_named((ROOT / folder).glob("*.md"), prose, MOST_ON_PAGES[folder])
