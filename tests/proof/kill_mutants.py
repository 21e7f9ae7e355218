"""Plant one mistake at a time in a copy of the code, and search for it: `python -m tests.proof.kill_mutants`.

--only NAME takes one mutant, --anywhere tries all spaces of the mutants, smallest first, and --docs writes the table
into docs/internals/mutants.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.proof.explore import Explorer
from tests.proof.mutants import MUTANTS, AnySpace, Mutant

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "internals" / "mutants.md"
BEGIN: Final = "<!-- mutants: written by `python -m tests.proof.kill_mutants --docs` -->"
END: Final = "<!-- mutants end -->"

_TIMEOUT_S: Final = 600
_COPIED: Final = ("dualwrite", "spark_sink", "tests/proof")


class Kill(NamedTuple):
    """The result of a search; `found` is empty without an error."""

    states: int
    depth: int
    """How many steps the shortest story has."""
    found: str

    def __str__(self) -> str:
        if not self.found:
            return f"SURVIVED {self.states} states"
        return f"{self.states} states, depth {self.depth}: {self.found}"


def plant(mutant: Mutant, directory: Path) -> None:
    """Copy the code into a directory, with the mistakes. Raises ValueError if a line does not stand there once."""
    for name in _COPIED:
        # compiled files save seconds; those that another process is just writing vanish in the middle
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / "tests" / "__init__.py", directory / "tests")
    for edit in mutant.edits:
        path = directory / edit.file
        text = path.read_text()
        if text.count(edit.line) != 1:
            raise ValueError(f"{mutant.name}: the line stands {text.count(edit.line)} times in {edit.file}")
        path.write_text(text.replace(edit.line, edit.wrong))


def kill(mutant: Mutant, space: AnySpace | None = None) -> Kill:
    """Plant a mutant in a temporary copy, and search a space there, its own by default, in a process of its own.

    Raises ValueError as `plant` does, and RuntimeError if the code does not even start.
    """
    name = mutant.name if space is None else next(each.name for each in MUTANTS if each.space == space)
    with tempfile.TemporaryDirectory(prefix="dualwrite-mutant-") as directory:
        plant(mutant, Path(directory))
        searched = subprocess.run(
            [sys.executable, "-m", "tests.proof.kill_mutants", "--search", name],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": directory},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    if searched.returncode:
        raise RuntimeError(f"{mutant.name}: the search does not even begin: {searched.stderr.splitlines()[-1]}")
    states, depth, found = searched.stdout.split(" ", 2)
    return Kill(int(states), int(depth), found.strip())


def search(space: AnySpace) -> Kill:
    """Search a space with the code of this process, with all orders of its steps: a reduction trusts brokers."""
    logging.disable(logging.CRITICAL)
    rules = space.rules()
    found = Explorer(rules, space.budget).search()
    rules.close()
    return Kill(found.states, len(found.story.steps) if found.story else 0, " ".join((found.wrong or "").split()))


def _in_own(mutant: Mutant) -> tuple[AnySpace, Kill]:
    return mutant.space, kill(mutant)


def _anywhere(mutant: Mutant) -> tuple[AnySpace, Kill]:
    """Search the spaces of all mutants, until one finds this one."""
    spaces = sorted({each.space for each in MUTANTS}, key=lambda each: each.size)
    for space in spaces:
        killed = kill(mutant, space)
        if killed.found:
            return space, killed
    return mutant.space, Kill(0, 0, "")


def table(kills: Sequence[tuple[Mutant, Kill]]) -> str:
    """Return the table of the mutants in Markdown."""
    lines = [
        "| mutant | in | what it takes away | found in | states | depth | what is found |",
        "|---|---|---|---|---|---|---|",
    ]
    for mutant, killed in kills:
        where = f"`{Path(mutant.edits[0].file).name}`"
        states = killed.states or "-"
        depth = killed.depth or "-"
        found = killed.found.replace("|", "/")
        lines.append(
            f"| {mutant.name} | {where} | {mutant.stands_for} | {mutant.space.name} | {states} | {depth} | {found} |"
        )
    return "\n".join(lines)


def write_docs(kills: Sequence[tuple[Mutant, Kill]]) -> None:
    """Replace the table in docs/internals/mutants.md."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(kills)}\n{END}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Search for all mutants, or for the named one; return 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.kill_mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME")
    parser.add_argument("--anywhere", action="store_true", help="try the spaces of all mutants")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/internals/mutants.md")
    parser.add_argument("--search", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.search is not None:
        killed = search(next(each.space for each in MUTANTS if each.name == options.search))
        print(killed.states, killed.depth, killed.found)
        return 0
    chosen = [mutant for mutant in MUTANTS if options.only in (None, mutant.name)]
    kills = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, (space, killed) in zip(
            chosen, pool.map(_anywhere if options.anywhere else _in_own, chosen), strict=True
        ):
            print(f"{mutant.name}: {space.name}: {killed}", flush=True)
            kills.append((mutant, killed))
    if options.docs and options.only is None:
        write_docs(kills)
    survived = [mutant.name for mutant, killed in kills if not killed.found]
    print(f"{len(kills) - len(survived)} of {len(kills)} mutants killed; survived: {', '.join(survived) or 'none'}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
