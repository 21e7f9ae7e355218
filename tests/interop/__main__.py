"""Runs every foreign client's cases on both brokers and prints the report card.

    python -m tests.interop                          everything
    python -m tests.interop kafkajs java             these clients
    python -m tests.interop --only emulator          without the real Apache Kafka
    python -m tests.interop -k compression --verbose cases by name, as pytest shows them
    python -m tests.interop --json

Exit status 0 when no case failed that is not listed as known to fail, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Final

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.apache_kafka import fetch_kafka
from tests.support.servers.cache import find_program

from .client_folders import ALL_FOLDERS, ROOT, On
from .conftest import KAFKA_VERSION_USED
from .report_card import ReportCard

_TIMEOUT_S: Final = 300
"""The time limit of one case."""

_NOTHING_SELECTED: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases selected by `arguments`. Return the exit status."""
    options = _parser().parse_args(arguments)
    brokers = _brokers(options.only)
    card = ReportCard(brokers)
    silence = contextlib.nullcontext() if options.verbose else contextlib.redirect_stdout(io.StringIO())
    with silence:
        status = pytest.main(_pytest_arguments(options), plugins=[card])
    if status not in _NOTHING_SELECTED:
        print(f"the cases could not be run: {pytest.ExitCode(status).name}; --verbose says why", file=sys.stderr)
        return 1
    print(card.as_json() if options.json else card.as_table())
    return int(card.has_failures)


def _pytest_arguments(options: argparse.Namespace) -> list[str]:
    folders = [str(ROOT / folder) for folder in options.clients or [client.folder for client in ALL_FOLDERS]]
    selection = ["-k", options.k] if options.k else []
    shown = ["-v"] if options.verbose else ["-q"]
    return [*folders, *selection, *shown, f"--timeout={_TIMEOUT_S}", "-p", "no:cacheprovider"]


def _brokers(only: str | None) -> tuple[On, ...]:
    """The columns of the card; a missing Apache Kafka is left out, with a line about it."""
    if only is not None:
        return (On(only),)
    try:
        find_program("java", "a real Apache Kafka needs a Java 17 runtime")
        fetch_kafka(KAFKA_VERSION_USED)
    except ServerUnavailableError as error:
        print(f"without {On.APACHE_KAFKA}: {error}", file=sys.stderr)
        return (On.EMULATOR,)
    return tuple(On)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description="The report card of foreign clients.")
    folders = [client.folder for client in ALL_FOLDERS]
    parser.add_argument("clients", nargs="*", choices=[*folders, []], metavar="CLIENT", help=", ".join(folders))
    parser.add_argument("--only", choices=[str(broker) for broker in On], help="one broker instead of both")
    parser.add_argument("-k", metavar="EXPRESSION", help="cases by name, as pytest takes it")
    parser.add_argument("--json", action="store_true", help="the card for programs")
    parser.add_argument("--verbose", action="store_true", help="show each case while it runs, and tracebacks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
