"""Wrap the paragraphs of pages that have a line of more than 140 characters: `python docs/reflow.py`.

Tables, code and headings stay as they are: a table's row has to be one line. What has no line that is too long is not
touched either, so that it can be run again at any time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LONGEST: Final = 140
_WIDTH: Final = 120
_ITEM: Final = re.compile(r"(\s*(?:[-*+]|\d+[.)])\s+)(.*)")
_WORD: Final = re.compile(r"(?:`+[^`]*`+|[^\s`]|`)+")
"""A word; code with spaces in it is one, unless it is longer than a line."""
_MARKUP: Final = re.compile(r"[-*+>|=#]|\d+[.)]$")
"""Words that would mean something else at the beginning of a line."""


def reflowed(text: str) -> str:
    """Return the page with its long paragraphs wrapped."""
    blocks = _blocks(text.split("\n"))
    return "\n".join(line for block, is_text in blocks for line in (_wrapped(block) if is_text else block))


def too_long(text: str) -> list[str]:
    """Return the lines of a page, without its tables, that are too long."""
    return [line for line in text.splitlines() if len(line) > LONGEST and not line.lstrip().startswith("|")]


def _blocks(lines: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield paragraphs and list items as blocks, and everything else line by line, with whether it is text."""
    block: list[str] = []
    in_code = False
    for line in lines:
        is_fence = line.lstrip().startswith("```")
        is_text = not (in_code or is_fence or not line.strip() or re.match(r"\s*[|#<>]|\s*!\[", line))
        in_code ^= is_fence
        if block and (not is_text or _ITEM.match(line)):
            yield block, True
            block = []
        if is_text:
            block.append(line)
        else:
            yield [line], False
    if block:
        yield block, True


def _wrapped(block: Sequence[str]) -> Iterator[str]:
    if not any(len(line) > LONGEST for line in block):
        yield from block
        return
    item = _ITEM.match(block[0])
    first = item[1] if item else re.match(r"\s*", block[0])[0]  # type: ignore[index]
    line, indent = first, " " * len(first)
    is_empty = True
    for word in _words(" ".join([block[0][len(first) :], *block[1:]])):
        if not is_empty and len(line) + 1 + len(word) > _WIDTH:
            yield line
            line, is_empty = indent, True
        line, is_empty = (line + word if is_empty else f"{line} {word}"), False
    yield line


def _words(text: str) -> Iterator[str]:
    """Yield the words; one that would be markup at the beginning of a line stays with the word before it."""
    words = [part for word in _WORD.findall(text) for part in (word.split() if len(word) > _WIDTH else [word])]
    heads = [index == 0 or not _MARKUP.match(word) or word.startswith("**") for index, word in enumerate(words)]
    number = 0
    numbers = [number := number + head for head in heads]
    for _, group in groupby(zip(numbers, words, strict=True), key=lambda each: each[0]):
        yield " ".join(word for _, word in group)


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text()
        after = reflowed(before)
        if after != before:
            page.write_text(after)
