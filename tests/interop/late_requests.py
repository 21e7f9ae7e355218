"""Runs the matrix of late requests with each client on real Apache Kafkas and prints it for the page.

    python -m tests.interop.late_requests                              every client, 3.9 and 4.4
    python -m tests.interop.late_requests confluent-kafka --only 3.9

A square is the worst of its cells, which differ in how the two transactions end. Failures are listed below the table.
Exit status 1 if this package's own producer had an effect that it did not report.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final

from tests.interop.foreign_clients import Aiokafka, Confluent, KafkaPython
from tests.support.kafka_proxy import WAIT_S
from tests.support.late_matrix import V1, cells, forgotten
from tests.support.late_requests import TWO_PHASE, Cell, How, MakeProducer, Outcome, Play, Request
from tests.support.own_producer import OwnProducer
from tests.support.real_kafkas import OLDER, RELEASED, Kind, shared_kafka, stop_shared_kafkas

OWN: Final = "dualwrite"
CLIENTS: Final[dict[str, MakeProducer]] = {
    OWN: OwnProducer,
    **{client.name: client.producer for client in (Confluent(), Aiokafka(), KafkaPython())},
}
BROKERS: Final[dict[str, Kind]] = {"3.9": OLDER, "4.4": RELEASED}
_PATIENCE_S: Final = 4 * WAIT_S
"""For one cell: a client that has not ended by then is stuck."""


class Square(IntEnum):
    """The result of the cells of a square; the greatest is the worst."""

    NOT_SENT = 0
    FINE = 1
    TOLD = 2
    BROKEN = 3
    ANOMALY = 4

    @property
    def mark(self) -> str:
        """As the table has it."""
        return {0: "-", 1: "ok", 2: "told", 3: "stuck", 4: "**anomaly**"}[self]


class Findings:
    """All squares, by request, way, client and broker."""

    def __init__(self) -> None:
        self.squares: dict[tuple[Request, How, str, str], Square] = {}
        self.notes: list[str] = []

    def add(self, cell: Cell, client: str, broker: str, outcome: Outcome | None) -> None:
        """`None`: the client did not come to an end."""
        square = _judge(outcome)
        place = (cell.request, cell.how, client, broker)
        self.squares[place] = max(square, self.squares.get(place, Square.NOT_SENT))
        if outcome is None:
            self.notes.append(f"{client} on {broker}, {cell}: stuck")
        for anomaly in outcome.anomalies if outcome is not None else ():
            self.notes.append(f"{client} on {broker}, {cell}: {anomaly}")

    def table(self, clients: Sequence[str], brokers: Sequence[str]) -> Iterator[str]:
        """The table in Markdown."""
        columns = [(client, broker) for broker in brokers for client in clients]
        yield (
            "| request | what happens to it | " + " | ".join(f"{client}, {broker}" for client, broker in columns) + " |"
        )
        yield "|---|---|" + "---|" * len(columns)
        for request in Request:
            for how in How:
                marks = [self.squares.get((request, how, *column)) for column in columns]
                if any(mark is not None for mark in marks):
                    told = " | ".join("-" if mark is None else mark.mark for mark in marks)
                    yield f"| {request.value} | {how.value} | {told} |"


def _judge(outcome: Outcome | None) -> Square:
    if outcome is None:
        return Square.BROKEN
    if outcome.anomalies:
        return Square.ANOMALY
    if not outcome.is_caught:
        return Square.NOT_SENT
    return Square.TOLD if outcome.told else Square.FINE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix selected by `arguments`. Return the exit status."""
    options = _parser().parse_args(arguments)
    clients, brokers = options.clients or list(CLIENTS), [options.only] if options.only else list(BROKERS)
    findings = Findings()
    is_well = True
    for broker in brokers:
        address = shared_kafka(BROKERS[broker]).bootstrap_servers
        for client in clients:
            for cell in (cell for cell in cells(V1) if cell.end not in TWO_PHASE):
                outcome = _played(Play(address, CLIENTS[client], cell).run)
                findings.add(cell, client, broker, outcome)
                known = forgotten(V1, cell) if broker == "3.9" else []
                is_well = is_well and (client != OWN or (outcome is not None and outcome.anomalies == known))
            print(f"{client} on {broker} is done", file=sys.stderr, flush=True)
    for line in [*findings.table(clients, brokers), "", *findings.notes]:
        print(line)
    stop_shared_kafkas()
    return 0 if is_well else 1


def _played(run: Callable[[], Outcome]) -> Outcome | None:
    """The result; None if the client neither went on nor failed."""
    ended: list[Outcome] = []

    def play() -> None:
        try:
            ended.append(run())
        except AssertionError as error:
            print(f"stuck: {error}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return ended[0] if ended else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.late_requests", description="Late requests.")
    parser.add_argument("clients", nargs="*", choices=[*CLIENTS, []], metavar="CLIENT", help=", ".join(CLIENTS))
    parser.add_argument("--only", choices=list(BROKERS), help="one release instead of both")
    return parser


if __name__ == "__main__":
    sys.exit(main())
