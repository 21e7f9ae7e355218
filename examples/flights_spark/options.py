"""The options of the command line."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DEFAULT_PLOT: Final = Path("build/flights-spark.png")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    rows: int
    rows_per_batch: int
    kills: int
    partitions: int
    seed: int
    plot: Path

    @classmethod
    def parse(cls, arguments: Sequence[str] | None) -> Options:
        """Parse the command line. Exits with status 2 and a message if it is invalid."""
        given = vars(_parser().parse_args(arguments))
        if given["seed"] is None:
            given["seed"] = random.SystemRandom().randrange(1_000_000)
        return cls(**given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights_spark",
        description="Stream flights through Spark to a Kafka topic, a Postgres table and running totals, kill the "
        "driver again and again, and compare all of them with the input at the end.",
        epilog="Exit status: 0 the sink wrote everything exactly once; 1 it did not; 2 the run could not be completed.",
    )
    add = parser.add_argument
    add("--rows", type=_at_least_1, default=12_000, metavar="N", help="flights (default: %(default)s)")
    add("--rows-per-batch", type=_at_least_1, default=400, metavar="N", help="flights per batch (default: %(default)s)")
    add(
        "--kills",
        type=_at_least_0,
        default=8,
        metavar="N",
        help="how often the driver is killed (default: %(default)s)",
    )
    add("--partitions", type=_at_least_1, default=4, metavar="N", help="of each topic (default: %(default)s)")
    add("--seed", type=int, metavar="N", help="chooses the kills (default: a random one, which is printed)")
    add("--plot", type=Path, default=_DEFAULT_PLOT, metavar="FILE", help="where the plot goes (default: %(default)s)")
    return parser


def _at_least_1(text: str) -> int:
    return _number(text, least=1)


def _at_least_0(text: str) -> int:
    return _number(text, least=0)


def _number(text: str, *, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number
