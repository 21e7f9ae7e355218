"""`python -m benchmarks.paths`: how far a request travels through the source files, and how large the files are.

Counts, for seven paths, the Python calls into this project's code, the files that they enter, and the changes of file
along the way: calls into another file than the call before in the same thread. Each path runs in this process against
an emulator in this process; calls into other libraries and calls on the other side of the wire are not counted. Each
number is the median over `--rounds` runs on warm objects, so it does not depend on how busy the machine is.

Then prints the size of each folder, and the import cycles (type-only imports included).
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from benchmarks.dual_write_work import INSERT, PSYCOPG_INSERT, create_tables
from dualwrite import DualWriter, PsycopgDualWriter
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.participant import ParticipantProducer
from dualwrite.testing.postgres import PostgresServer
from tests.support.import_graph import ROOT, import_cycles, import_graph, source_files

PACKAGES = ("dualwrite", "spark_sink")
EMULATOR = "dualwrite/broker_emulator/"
TOPIC = "paths"
_BODY = b"x" * 100
_WARM_UP = 5
_SETTLE_S = 0.02
"""Time for background threads to finish the work that a call has set off, before and after it is counted."""


@dataclass(frozen=True)
class Trace:
    """The counts of one run, or their medians over several."""

    calls: float
    rooms: float
    changes: float
    room_names: tuple[str, ...] = ()
    """The files that most of the runs entered."""


class PathTracer:
    """Records the calls of Python functions in this project's files, by thread, while it is on."""

    def __init__(self) -> None:
        self._rooms: dict[str, str | None] = {}
        self._called: defaultdict[int, list[str]] = defaultdict(list)
        self._is_on = False

    def install(self) -> None:
        """Trace this thread, and each one that is started from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record the calls made while the block runs, and those it sets off in other threads."""
        time.sleep(_SETTLE_S)
        self._called.clear()
        self._is_on = True
        try:
            yield
            time.sleep(_SETTLE_S)
        finally:
            self._is_on = False

    def trace(self, *, in_emulator: bool) -> Trace:
        """Return the calls on one side of the wire."""
        by_thread = [
            [room for room in rooms if room.startswith(EMULATOR) == in_emulator] for rooms in self._called.values()
        ]
        entered = {room for rooms in by_thread for room in rooms}
        changes = sum(
            before != after for rooms in by_thread for before, after in zip([None, *rooms], rooms, strict=False)
        )
        return Trace(sum(map(len, by_thread)), len(entered), changes, tuple(sorted(entered)))

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._is_on and event == "call":
            filename = frame.f_code.co_filename
            try:
                room = self._rooms[filename]
            except KeyError:
                room = self._rooms[filename] = _room_of(filename)
            if room is not None:
                self._called[threading.get_ident()].append(room)


def _room_of(filename: str) -> str | None:
    path = Path(filename)
    if not path.is_relative_to(ROOT):
        return None
    room = path.relative_to(ROOT).as_posix()
    return room if room.startswith(tuple(f"{package}/" for package in PACKAGES)) else None


def median(traces: list[Trace]) -> Trace:
    """Return the median of each number, and the files that at least half of the runs entered."""
    runs_by_room: defaultdict[str, int] = defaultdict(int)
    for trace in traces:
        for room in trace.room_names:
            runs_by_room[room] += 1
    return Trace(
        calls=statistics.median(trace.calls for trace in traces),
        rooms=statistics.median(trace.rooms for trace in traces),
        changes=statistics.median(trace.changes for trace in traces),
        room_names=tuple(sorted(room for room, runs in runs_by_room.items() if 2 * runs >= len(traces))),
    )


# ---- the paths --------------------------------------------------------------------------------------------------


class Paths:
    """The seven paths, on one emulator and one Postgres."""

    def __init__(self, tracer: PathTracer, rounds: int) -> None:
        self._tracer = tracer
        self._rounds = rounds
        self._exits = ExitStack()
        self._broker = self._exits.enter_context(Emulator(topics={TOPIC: 1}))
        server = PostgresServer.start()
        self._exits.callback(server.stop)
        self._engine = sa.create_engine(server.url)
        self._exits.callback(self._engine.dispose)
        create_tables(self._engine)
        self._conninfo = server.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def close(self) -> None:
        """Stop both servers."""
        self._exits.close()

    def _median(self, run: Callable[[], None], *, in_emulator: bool = False) -> Trace:
        """Run warm-ups, then return the median of the counted runs; `run` switches the tracer on where it counts."""
        for _ in range(_WARM_UP):
            run()
        traces = []
        for _ in range(self._rounds):
            run()
            traces.append(self._tracer.trace(in_emulator=in_emulator))
        return median(traces)

    def _producer(self, name: str) -> ParticipantProducer:
        producer = ParticipantProducer(
            bootstrap_servers=self._broker.bootstrap_servers,
            transactional_id=name,
            transaction_two_phase_commit_enable=True,
        )
        producer.init_transactions()
        return producer

    def send_to_ack(self) -> Trace:
        """Trace `send` of the first record of a transaction, until the broker has acknowledged it."""
        producer = self._producer("send")

        def run() -> None:
            producer.begin_transaction()
            with self._tracer.on():
                producer.send(TOPIC, value=_BODY, key=b"k").result(10)
            producer.commit_transaction()

        with producer:
            return self._median(run)

    def complete(self, *, in_emulator: bool = False) -> Trace:
        """Trace `complete_transaction` of a prepared transaction with one record."""
        producer = self._producer("complete")

        def run() -> None:
            producer.begin_transaction()
            producer.send(TOPIC, value=_BODY, key=b"k").result(10)
            state = producer.prepare_transaction()
            with self._tracer.on():
                producer.complete_transaction(state)

        with producer:
            return self._median(run, in_emulator=in_emulator)

    def end_txn(self) -> Trace:
        """Trace the emulator's side of `complete`: EndTxn, including the markers."""
        return self.complete(in_emulator=True)

    def sqlalchemy_block(self) -> Trace:
        """Trace a block of a ready `DualWriter`, with one row and one record."""
        writer = DualWriter(
            self._engine, bootstrap_servers=self._broker.bootstrap_servers, transactional_id="paths-sqlalchemy"
        )

        def run() -> None:
            with self._tracer.on(), writer.transaction() as tx:
                tx.connection.execute(INSERT, {"key": "k", "body": _BODY})
                tx.send(TOPIC, _BODY, "k")

        with writer:
            return self._median(run)

    def psycopg_block(self) -> Trace:
        """Trace a block of a ready `PsycopgDualWriter` on a given connection, with one row and one record."""
        writer = PsycopgDualWriter(
            self._conninfo, bootstrap_servers=self._broker.bootstrap_servers, transactional_id="paths-psycopg"
        )
        with psycopg.connect(self._conninfo, autocommit=True) as connection, writer:

            def run() -> None:
                with self._tracer.on(), writer.transaction(connection) as tx:
                    tx.connection.execute(PSYCOPG_INSERT, ("k", _BODY))
                    tx.send(TOPIC, _BODY, "k")

            return self._median(run)

    def take_over(self) -> Trace:
        """Trace `recover()` of a new `DualWriter` whose predecessor crashed between the two commits."""
        return self._take_over(in_doubt=True)

    def take_over_nothing(self) -> Trace:
        """Trace `recover()` of a new `DualWriter` whose predecessor has ended its last dual write."""
        return self._take_over(in_doubt=False)

    def _take_over(self, *, in_doubt: bool) -> Trace:
        def run() -> None:
            name = f"paths-{uuid.uuid4().hex[:8]}"
            with self._writer(name) as writer:
                writer.recover()  # creates the state row
                kafka_id = writer.kafka_transactional_id or name
            self._leave(name, kafka_id, in_doubt=in_doubt)
            with self._writer(name) as writer, self._tracer.on():
                writer.recover()

        return self._median(run)

    def _writer(self, name: str) -> DualWriter:
        return DualWriter(self._engine, bootstrap_servers=self._broker.bootstrap_servers, transactional_id=name)

    def _leave(self, name: str, kafka_id: str, *, in_doubt: bool) -> None:
        """Leave the state of a process that was killed after its database commit, or after both commits."""
        predecessor = self._producer(kafka_id)
        predecessor.begin_transaction()
        predecessor.send(TOPIC, value=_BODY, key=b"k")
        state = predecessor.prepare_transaction()
        decided = sa.text(
            "UPDATE kafka_transaction_state SET prepared_transaction_state = :state, manifest = :manifest "
            "WHERE transactional_id = :name"
        )
        with self._engine.begin() as connection:
            values = {"state": str(state), "manifest": str(predecessor.manifest), "name": name}
            connection.execute(decided, values)
        if not in_doubt:
            predecessor.complete_transaction(state)
        predecessor.close(timeout_s=0)


def measure(rounds: int) -> dict[str, Trace]:
    """Return the seven paths."""
    logging.getLogger("dualwrite").setLevel(logging.ERROR)  # the crashed predecessors would warn
    tracer = PathTracer()
    tracer.install()
    paths = Paths(tracer, rounds)
    try:
        return {
            "send to ack": paths.send_to_ack(),
            "complete": paths.complete(),
            "a DualWriter block": paths.sqlalchemy_block(),
            "a psycopg block": paths.psycopg_block(),
            "EndTxn in the emulator": paths.end_txn(),
            "take over and recover an id": paths.take_over(),
            "take over an id, nothing open": paths.take_over_nothing(),
        }
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        paths.close()


# ---- the house --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folder:
    """The Python files right in one folder, or of a whole tree."""

    files: int
    lines: int

    @property
    def mean_lines(self) -> float:
        return self.lines / self.files


def folders() -> dict[str, Folder]:
    """Return the size of each folder, subfolders not included, then of each of the large trees."""
    lines_by_folder: defaultdict[str, list[int]] = defaultdict(list)
    for path in source_files(*PACKAGES).values():
        folder = path.parent.relative_to(ROOT).as_posix()
        lines_by_folder[folder].append(path.read_text().count("\n"))
    sizes = {folder: Folder(len(lines), sum(lines)) for folder, lines in sorted(lines_by_folder.items())}
    for tree in ("dualwrite/broker_emulator", "dualwrite/client", "dualwrite/recipes", *PACKAGES):
        below = [each for name, each in sizes.items() if f"{name}/".startswith(f"{tree}/") and not name.endswith("**")]
        sizes[f"{tree}/**"] = Folder(sum(each.files for each in below), sum(each.lines for each in below))
    return sizes


def cycles() -> list[list[str]]:
    """Return the import cycles."""
    return import_cycles(import_graph(*PACKAGES))


# ---- the output -------------------------------------------------------------------------------------------------


def _show(traces: dict[str, Trace], console: Console) -> None:
    table = Table("path", "calls", "rooms entered", "changes of room", title="Paths")
    for name, trace in traces.items():
        table.add_row(name, *(f"{number:.0f}" for number in (trace.calls, trace.rooms, trace.changes)))
    console.print(table)
    table = Table("folder", "files", "lines", "mean lines", title="Folders (** with subfolders)")
    for name, folder in folders().items():
        table.add_row(name, str(folder.files), f"{folder.lines:,}", f"{folder.mean_lines:.0f}")
    console.print(table)
    found = cycles()
    console.print(f"{len(found)} import cycles")
    for cycle in found:
        console.print(f"{len(cycle)} modules: {', '.join(cycle)}", soft_wrap=True, highlight=False)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paths", description=__doc__.partition("\n")[0].partition(": ")[2] if __doc__ else ""
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the files of each path")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="runs of each path (default: %(default)s)")
    arguments = parser.parse_args()
    traces = measure(arguments.rounds)
    if arguments.json:
        sizes = {name: asdict(folder) | {"mean_lines": folder.mean_lines} for name, folder in folders().items()}
        paths = {name: asdict(trace) for name, trace in traces.items()}
        print(json.dumps({"paths": paths, "folders": sizes, "cycles": cycles()}, indent=1))
    else:
        _show(traces, Console(width=120))


if __name__ == "__main__":
    main()
