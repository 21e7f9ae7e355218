"""`python -m benchmarks.manifest_cost`: the CPU time that the manifest costs the writing process per dual write.

Three ways run in turns, each in a process of its own, on one Postgres and one emulator: a dual write as it is; one that
builds and stores no manifest, by replacing two methods (the producer's notes of each acknowledgement stay); and, with
`--before REVISION`, the library of an older commit, taken from git, with all else that has changed since. CPU time is
user and system time of the whole process. Neighbours slow a CPU down, so the lowest of the rounds counts, and rounds
are short and many. `python -m benchmarks.cost WAY ...` counts calls instead, which do not depend on load at all.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from rich.console import Console

from benchmarks import broker_peers
from benchmarks.dual_write_ways import BARE, POOL, Written
from benchmarks.dual_write_work import create_tables
from benchmarks.producer import duration_of, new_topic, rounds_of, show_progress
from dualwrite.testing.postgres import PostgresServer

ROOT: Final = Path(__file__).parents[1]
STYLES: Final[Mapping[str, str]] = {"psycopg": "psycopg: ", "sqlalchemy": ""}
AS_IS: Final = "as it is"
WITHOUT: Final = "no manifest"
OLDER: Final = "older library"


def tree_of(revision: str, directory: Path) -> Path:
    """Extract a commit of this repository. Raises SystemExit if git does not know it."""
    archived = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=False)
    if archived.returncode != 0:
        raise SystemExit(archived.stderr.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def cpu_us(way: str, tree: Path, database_url: sa.URL, bootstrap_servers: str, duration_s: float) -> float:
    """Return the CPU time per dual write of one worker, which runs the code in `tree`."""
    create_tables(sa.create_engine(database_url, poolclass=sa.NullPool))
    with new_topic(bootstrap_servers) as topic:
        command = [sys.executable, "-m", "benchmarks.dual_write_ways", way, "--topic", topic]
        command += ["--database-url", database_url.render_as_string(hide_password=False)]
        command += ["--bootstrap-servers", bootstrap_servers, "--duration-s", str(duration_s)]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{way}: exit status {ran.returncode}\n{ran.stderr}")
    return Written.of_json(ran.stdout).done.cpu_s_per_million


def compare(chosen: argparse.Namespace, older: Path | None, console: Console) -> dict[str, dict[str, list[float]]]:
    """Return the CPU times of each style and way, round by round."""
    ways = {AS_IS: (POOL, ROOT), WITHOUT: (BARE, ROOT)} | ({} if older is None else {OLDER: (POOL, older)})
    found: dict[str, dict[str, list[float]]] = {style: {name: [] for name in ways} for style in STYLES}
    with (
        PostgresServer.start() as postgres,
        broker_peers.emulator() as broker,
        show_progress(console, chosen.rounds * len(ways) * len(STYLES)) as progressed,
    ):
        for _ in range(chosen.rounds):
            for style, prefix in STYLES.items():
                for name, (way, tree) in ways.items():
                    used = cpu_us(prefix + way, tree, postgres.url, broker.bootstrap_servers, chosen.duration_s)
                    found[style][name].append(used)
                    progressed(f"{style}, {name}: {used:,.0f} us")
    return found


def show(found: Mapping[str, Mapping[str, list[float]]], console: Console) -> None:
    """Print the lowest and the medians, and how the lowest compare."""
    for style, by_way in found.items():
        for name, used in by_way.items():
            lowest, middle = min(used), statistics.median(used)
            line = f"{style}, {name}: {lowest:,.0f} us of CPU for each dual write (median {middle:,.0f})"
            ratio = min(by_way[AS_IS]) / min(used)
            console.print(
                line + ("" if name == AS_IS else f"; as it is: {ratio:.3f} x"), highlight=False, soft_wrap=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.manifest_cost", description=__doc__)
    parser.add_argument("--rounds", type=rounds_of, default=15, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--duration-s", type=duration_of, default=1.0, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument("--before", metavar="REVISION", help="also the library of this commit")
    chosen = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="dualwrite-before-") as directory:
        older = None if chosen.before is None else tree_of(chosen.before, Path(directory))
        show(compare(chosen, older, console), console)


if __name__ == "__main__":
    main()
