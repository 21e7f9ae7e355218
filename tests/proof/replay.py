"""Replay a story against a real broker emulator and a real Postgres, with the code that ships in real processes.

python -m tests.proof.replay FILE

The model goes beside it, step by step: it has the requests of each process, and the required result of each step. After
each step the row, the table, the log, the coordinator and the callers' results are compared. The story of a mended
mistake does not happen any more as it was told; it is then followed as far as it goes: each party does its next step in
the story's order and has the story's faults. At the end everything goes on without faults until it is at rest.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.handles import HeldPoint
from dualwrite.broker_emulator.log.record_batch import iter_records, parse_end_txn_marker, parse_header
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.client import messages as m
from tests.interop.wire import Identity, Wire
from tests.proof.kafka_model import FOREIGN_TIMEOUT_MS
from tests.proof.kafka_requests import TOPIC, EndOf, Produce, RecordsOf, RepairOf, WriteMarker
from tests.proof.owner import RECOVERED, Commit, Lock, Read
from tests.proof.replay_network import WAIT_S, HeldCommit, Network, Parked, ReplayError, What
from tests.proof.replay_process import Program, RealProcess, recovering, writing
from tests.proof.replay_servers import EXPIRATION_MS, TRANSACTION_TIMEOUT_MS, Servers
from tests.proof.shape import ONE_RECORD
from tests.proof.story import (
    Fate,
    Setting,
    Step,
    Story,
    Wanted,
    brief,
    kind_of,
    process_of,
    read_story,
    step_to,
    wanted,
)
from tests.proof.world import World

_MOST_STEPS_TO_REST: Final = 500
_SETTLING_TRIES: Final = 4
_SCAN_MS: Final = 11_000
_GIVEN_UP_WAIT_S: Final = 0.3
_LEFT_WAIT_S: Final = 2.0
_NOTHING: Final = "-"
_PAIR: Final = re.compile(r"\b(\d+):(-?\d+)")

_FREE: Final = frozenset(
    {
        Fate.ANSWERED,
        Fate.NO_MARKER,
        Fate.CONNECTION_GONE,
        Fate.MARKER,
        Fate.COMPLETE,
        Fate.LATE,
        Fate.COMMIT_LATE,
        Fate.COMMIT_DROPPED,
        Fate.RECOVER,
    }
)


class Replayed(NamedTuple):
    """The result of a replay: the steps that were taken, and the errors, on both sides."""

    steps: tuple[str, ...]
    not_taken: tuple[str, ...]
    """Steps of the story that could not be taken any more."""
    wrong_in_the_model: str | None
    wrong_on_real_servers: str | None


NOT_REPLAYED: Final = ("recoveries", "services", "pools")
"""Features of settings that cannot be replayed."""


class Replay:
    """One history, on real servers and in the model."""

    def __init__(self, setting: Setting, servers: Servers, network: Network) -> None:
        """Raise ReplayError for a setting that cannot be replayed."""
        if setting.shape != ONE_RECORD or setting.budget.upgrades or setting.budget.moves:
            raise ReplayError("no replay has several partitions, consumed offsets, an upgrade, or moves yet")
        if setting.budget.outages or setting.budget.deletions:
            raise ReplayError("no replay has outages, or retention yet")
        if any(getattr(setting, name) for name in NOT_REPLAYED) or setting.budget.failovers or setting.budget.restores:
            raise ReplayError("no replay has pools, further processes, or a database that goes back yet")
        # psycopg has no statement of its own for the row: the message of COMMIT does its work.
        self._setting = setting = setting._replace(by_commit=True)
        self._rules = setting.rules()
        self._servers = servers
        self._network = network
        self._world = self._rules.start(setting.budget)
        self._emulator: Emulator = servers.emulator(setting.tier)
        self._kafka_id = servers.begin()
        self._lives: list[RealProcess] = []
        self._dead: list[RealProcess] = []
        self._commits: dict[tuple[int, int, int], HeldCommit] = {}
        """COMMITs on their way."""
        self._of_operators: list[Hashable] = []
        """Operators' requests that have not arrived."""
        self._given_up: dict[int, list[Parked]] = {}
        self._producer_ids: dict[str, str] = {}
        """The model's producer ids, by real ones."""
        self._markers: list[HeldPoint] = []
        self._steps: list[str] = []

    def __enter__(self) -> Replay:
        self._emulator.start()
        self._hold_markers()
        for number, values in enumerate(self._setting.written):
            self._lives.append(self._born(f"P{number}", writing(values)))
        self._settle()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for process in self._lives:
                process.kill()
        finally:
            for held in self._markers:
                held.release()
            self._emulator.stop()
            self._rules.close()

    def _born(self, name: str, program: Program) -> RealProcess:
        return RealProcess(name, program, self._network, self._emulator.bootstrap_servers, self._servers.postgres)

    # ---- the history ----------------------------------------------------------------------------------------

    def follow(self, lines: Iterable[str], seed: int = 0) -> Replayed:
        """Take these steps, as far as they can be taken, and then others until everything is at rest.

        Each line is the `brief` of a step.
        """
        not_taken: list[str] = []
        for line in lines:
            if self._wrong() != (None, None):
                break
            chosen = self._nearest(wanted(line))
            if chosen is None:
                not_taken.append(line)
            else:
                self._take(*chosen)
        self._go_to_rest(random.Random(seed))
        return Replayed(tuple(self._steps), tuple(not_taken), *self._wrong())

    def _nearest(self, step: Wanted) -> tuple[str, World] | None:
        """Return this step; else one of the same party with the same fate, or of both without a fault."""
        options = list(self._rules.steps(self._world))
        mine = [option for option in options if process_of(option[0]) == step.process]
        exact = [option for option in mine if brief(option[0]) == step.line]
        same = [option for option in mine if kind_of(option[0]).fate is step.fate]
        free = [option for option in mine if {step.fate, kind_of(option[0]).fate} <= _FREE and step.process is not None]
        return next(iter((*exact, *same, *free)), None)

    def _go_to_rest(self, choice: random.Random) -> None:
        for _ in range(_MOST_STEPS_TO_REST):
            if self._wrong() != (None, None) or self._rules.is_at_rest(self._world):
                return
            options = [each for each in self._rules.steps(self._world) if self._is_free(*each)]
            if not options:
                raise ReplayError("nothing can happen any more, and not all is done\n" + self.told())
            self._take(*choice.choice(options))
        raise ReplayError("it does not come to rest\n" + self.told())

    def _is_free(self, sentence: str, after: World) -> bool:
        return kind_of(sentence).fate in _FREE and after.budget == self._world.budget

    def _take(self, sentence: str, after: World) -> None:
        self._steps.append(sentence)
        before, self._world = self._world, after
        try:
            self._carry_out(sentence, before)
            self._settle()
            self._compare()
        except (ReplayError, TimeoutError) as error:
            raise ReplayError(f"{type(error).__name__}: {error}\n{self.told()}") from error

    def told(self) -> str:
        """Return the steps so far, to be read."""
        world, steps = self._rules.start(self._setting.budget), []
        for sentence in self._steps:
            world = next(after for said, after in self._rules.steps(world) if said == sentence)
            steps.append(step_to(sentence, world))
        return str(Story(self._setting, tuple(steps), "see above"))

    # ---- each step ------------------------------------------------------------------------------------------

    def _carry_out(self, sentence: str, before: World) -> None:
        fate, number = kind_of(sentence).fate, process_of(sentence)
        match fate:
            case Fate.MARKER | Fate.COMPLETE:
                self._write_markers()
            case Fate.TIMEOUT:
                self._emulator.advance_clock(TRANSACTION_TIMEOUT_MS + _SCAN_MS)
                self._until(lambda: self._coordinator().startswith("Prepare"), "the transaction is not aborted")
            case Fate.FOREIGN:
                timeout_ms = TRANSACTION_TIMEOUT_MS if sentence.endswith("our timeout") else FOREIGN_TIMEOUT_MS
                with Wire(self._emulator.bootstrap_servers) as wire:
                    wire.init(self._kafka_id, version=4, timeout_ms=timeout_ms)
            case Fate.FORGOTTEN:
                self._emulator.advance_clock(EXPIRATION_MS + _SCAN_MS)
                self._until(lambda: self._coordinator() == _NOTHING, "the id is not forgotten")
            case Fate.OPERATOR_SENDS:
                self._of_operators += (Counter(self._world.late) - Counter(before.late)).elements()
            case Fate.LATE:
                self._arrives_late(before)
            case Fate.CONNECTION_ENDED:
                (txn,) = set(before.txns) - set(self._world.txns)
                self._servers.end_connection(self._lives[txn.process].server_process(txn.number))
            case Fate.COMMIT_LATE | Fate.COMMIT_DROPPED:
                (txn,) = set(before.txns) - set(self._world.txns)
                commit = self._commits.pop(txn[:3])
                self._network.run(commit.deliver() if fate is Fate.COMMIT_LATE else commit.drop())
            case Fate.RECOVER:
                self._lives.append(self._born(f"P{len(self._lives)}", recovering(tries=_SETTLING_TRIES)))
            case _:
                assert number is not None, sentence
                self._of_process(number, fate, before)

    def _of_process(self, number: int, fate: Fate, before: World) -> None:
        process = self._lives[number]
        request = self._request(before, number)
        if fate in (Fate.KILLED, Fate.KILLED_UNHEARD, Fate.KILLED_DELAYED):
            self._kill(number, fate, request, before)
            return
        parked = self._parked(process, request)
        if isinstance(request, Lock) and not any(txn.is_locked for txn in before.txns):
            self._servers.wait_until_free()
        match request:
            case Commit() if fate not in (Fate.ANSWERED, Fate.CONNECTION_GONE):
                self._commit(number, fate, parked, self._txn_of(before, number, request.number))
            case EndOf() | RecordsOf() | RepairOf() if fate in (Fate.UNHEARD, Fate.DELAYED):
                pass  # a reader of the log asks again, which changes nothing
            case Lock() | Read() | Commit() | EndOf() | RecordsOf() | RepairOf():
                process.gate.take(parked)
                parked.meet(fate).result(WAIT_S)
            case _:
                self._kafka(number, fate, parked)

    def _kafka(self, number: int, fate: Fate, parked: Parked) -> None:
        gate = self._lives[number].gate
        match fate:
            case Fate.ANSWERED | Fate.UNHEARD:
                gate.take(parked)
                parked.meet(fate).result(WAIT_S)
            case Fate.DELAYED:
                gate.leave(parked)
                parked.meet(fate).result(WAIT_S)
            case Fate.GIVEN_UP:
                gate.leave(parked)
                self._given_up.setdefault(number, []).append(parked)
                self._lives[number].lose_patience()
            case _:
                raise ReplayError(f"no request to Kafka can be {fate}")

    def _commit(self, number: int, fate: Fate, parked: Parked, txn: tuple[int, int, int]) -> None:
        process = self._lives[number]
        met = process.database_relay.meet(fate)
        process.gate.take(parked)
        parked.meet(Fate.ANSWERED)
        held = met.result(WAIT_S)
        if held is not None:
            self._commits[txn] = held

    def _kill(self, number: int, fate: Fate, request: Hashable, before: World) -> None:
        process = self._lives[number]
        if isinstance(request, Commit) and fate is not Fate.KILLED:
            self._commit(number, fate, self._parked(process, request), self._txn_of(before, number, request.number))
        process.kill()
        self._dead.append(process)
        self._given_up.pop(number, None)
        self._lives[number] = self._born(process.name + "'", recovering(self._setting.after_crash))

    @staticmethod
    def _txn_of(world: World, number: int, txn_number: int) -> tuple[int, int, int]:
        return number, world.processes[number].incarnation, txn_number

    def _parked(self, process: RealProcess, request: Hashable) -> Parked:
        parked = process.gate.waiting(what_of(request), WAIT_S)
        assert isinstance(parked, Parked), "it was settled"
        return parked

    def _arrives_late(self, before: World) -> None:
        (request,) = (Counter(before.late) - Counter(self._world.late)).elements()
        if request in self._of_operators:
            self._of_operators.remove(request)
            self._operate(request)
            return
        what = what_of(request)
        assert what is not None
        deadline_s = time.monotonic() + _LEFT_WAIT_S
        while True:
            for process in (*self._dead, *self._lives):
                parked = process.gate.left(what)
                if parked is not None:
                    process.gate.take(parked)
                    parked.meet(Fate.LATE).result(WAIT_S)
                    return
            if time.monotonic() > deadline_s:
                gates = "; ".join(f"{each.name}: {each.gate}" for each in (*self._dead, *self._lives))
                raise ReplayError(f"{what} was never sent, so it cannot arrive late ({gates})")
            time.sleep(0.01)

    def _operate(self, request: Hashable) -> None:
        real_ids = {ours: theirs for theirs, ours in self._producer_ids.items()}
        with Wire(self._emulator.bootstrap_servers) as wire:
            match request:
                case m.InitProducerId():
                    known = real_ids.get(str(request.producer_id), str(request.producer_id))
                    pair = Identity(int(known), request.producer_epoch)
                    wire.init(self._kafka_id, pair, version=4, timeout_ms=TRANSACTION_TIMEOUT_MS)
                case WriteMarker():
                    pair = Identity(int(real_ids[str(request.producer_id)]), request.producer_epoch)
                    wire.write_marker(
                        pair, TOPIC, commit=request.committed, coordinator_epoch=request.coordinator_epoch
                    )
                case _:
                    raise ReplayError(f"no replay knows how an operator sends {request!r}")

    # ---- Kafka's own steps ----------------------------------------------------------------------------------

    def _hold_markers(self) -> None:
        points = PausePoint.BEFORE_MARKER, PausePoint.BEFORE_COMPLETE_APPEND
        self._markers = [self._emulator.hold(point) for point in points]

    def _write_markers(self) -> None:
        for held in self._markers:
            held.release()
        self._until(lambda: self._coordinator().startswith("Complete"), "the markers are not written")
        self._hold_markers()

    @staticmethod
    def _until(condition: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise ReplayError(otherwise)
            time.sleep(0.002)

    # ---- comparison -----------------------------------------------------------------------------------------

    def _request(self, world: World, number: int) -> Hashable:
        process = world.processes[number]
        return self._rules.programs[process.program].nodes[process.node].request

    def _settle(self) -> None:
        """Wait until each process has the same request as in the model."""
        for number, process in enumerate(self._lives):
            what = what_of(self._request(self._world, number))
            given_up = self._given_up.get(number, [])
            if given_up and not process.gate.waiting(what, _GIVEN_UP_WAIT_S):
                for parked in given_up:  # in the model, an abandoned call has lost its connection
                    parked.meet(Fate.DELAYED)
                given_up.clear()
            is_there = process.gate.waiting(what, WAIT_S)
            if process.failure is not None:
                raise ReplayError(f"{process.name} has failed: {process.failure!r}") from process.failure
            if not is_there:
                raise ReplayError(f"{process.name} should ask {what or 'nothing any more'}, but: {process.gate}")

    def _compare(self) -> None:
        wanted = step_to("", self._world)
        found = self._renamed(wanted, self.standing())
        if found != wanted:
            raise ReplayError(f"the model expects {wanted}, and real servers show {found}")
        for number, process in enumerate(self._lives):
            told = self._told(number)
            if tuple(process.told) != told:
                raise ReplayError(f"{process.name}'s callers are told {process.told}, and in the model {told}")

    def _told(self, number: int) -> tuple[Any, ...]:
        process = self._world.processes[number]
        return self._rules.programs[process.program].nodes[process.node].told

    def _renamed(self, wanted: Step, found: Step) -> Step:
        """Return the findings with the model's producer ids."""
        for theirs, ours in zip(_pairs(found), _pairs(wanted), strict=False):
            if theirs not in self._producer_ids and ours not in self._producer_ids.values():
                self._producer_ids[theirs] = ours
        names = self._producer_ids

        def put(match: re.Match[str]) -> str:
            return f"{names.get(match[1], '?')}:{match[2]}"

        return found._replace(
            row=_PAIR.sub(put, found.row),
            log=tuple(_PAIR.sub(put, entry, count=1) for entry in found.log),
            coordinator=_PAIR.sub(put, found.coordinator),
        )

    def standing(self) -> Step:
        """Return how the real servers stand."""
        row, table = self._servers.row_and_table()
        return Step("", row or _NOTHING, table, tuple(self._log()), self._coordinator())

    def _log(self) -> Iterator[str]:
        for batch in self._emulator.log(TOPIC).batches:
            header = parse_header(batch)
            pair = f"{header.producer_id}:{header.producer_epoch}"
            records = list(iter_records(batch))
            if header.is_control:
                marker = parse_end_txn_marker(records[0])
                assert marker is not None
                yield f"{pair}{'+' if marker.commit else '-'}"
            else:
                yield f"{pair}={b','.join(record.value or b'' for record in records).decode()}"

    def _coordinator(self) -> str:
        for each in self._emulator.transactions():
            if each.transactional_id == self._kafka_id and each.state:
                return f"{each.state} {each.producer_id}:{each.producer_epoch}"
        return _NOTHING

    # ---- invariants -----------------------------------------------------------------------------------------

    def _wrong(self) -> tuple[str | None, str | None]:
        return self._rules.wrong(self._world), self._wrong_on_real_servers()

    def _wrong_on_real_servers(self) -> str | None:
        """Return the error that consumers and readers of the database see."""
        _, table = self._servers.row_and_table()
        seen = [(record.value or b"").decode() for record in self._emulator.records(TOPIC)]
        doubled = [value for value, count in Counter(seen).items() if count > 1]
        if doubled:
            return f"{doubled} are visible twice"
        if not set(table).issuperset(seen):
            return f"{set(seen) - set(table)} are visible, and were not committed"
        for process in self._lives:
            for said in process.told:
                if said[1] in ("COMMITTED", "ROLLED_BACK") and (said[0].decode() in table) != (said[1] == "COMMITTED"):
                    return f"{said} was said, and is not so"
        if not self._rules.is_at_rest(self._world):
            return None
        if lost := set(table).difference(seen):
            return f"{lost} are committed, and not visible"
        if RECOVERED not in self._lives[-1].told:
            return "recovery has never succeeded"
        if self._emulator.log(TOPIC).last_stable_offset != self._emulator.log(TOPIC).log_end_offset:
            return "a transaction is open at rest"
        return None


def _pairs(step: Step) -> list[str]:
    log = [_PAIR.findall(entry)[0][0] for entry in step.log]
    return [pair[0] for text in (step.row, step.coordinator) for pair in _PAIR.findall(text)] + log


def what_of(request: Hashable) -> What | None:
    """Return the subject of a request of the model; None for the end of the program."""
    match request:
        case None:
            return None
        case Lock() | Read() | Commit():
            return What(type(request).__name__, (request.number,))
        case m.InitProducerId():
            return What("InitProducerId", (request.producer_epoch, request.enable_2pc, request.keep_prepared_txn))
        case m.EndTxn():
            return What("EndTxn", (request.producer_epoch, request.committed))
        case m.AddPartitionsToTxn():
            return What("AddPartitionsToTxn", (request.producer_epoch,))
        case Produce():
            return What("Produce", (request.producer_epoch, request.sequence))
        case m.DescribeTransaction() | EndOf() | RecordsOf() | RepairOf():
            return What(type(request).__name__)
    raise ReplayError(f"no replay knows how real processes ask {request!r}: add it to what_of and to the gates")


def replay(story: Story, servers: Servers, network: Network, seed: int = 0) -> Replayed:
    """Replay a story. Raises ReplayError where the real servers differ from the model."""
    assert story.setting is not None
    with Replay(story.setting, servers, network) as stage:
        return stage.follow([brief(step.sentence) for step in story.steps], seed)


def main() -> None:
    """Replay the story in a file, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("story", type=Path, help="as written by tests.proof.explore --story")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    story = read_story(given.story.read_text().splitlines())
    with Network() as network, Servers() as servers:
        replayed = replay(story, servers, network)
    print(f"{len(replayed.steps)} steps, of which {len(story.steps) - len(replayed.not_taken)} are the story's")
    for line in replayed.not_taken:
        print(f"not taken: {line}")
    print(f"in the model:    {replayed.wrong_in_the_model or 'nothing is wrong'}")
    print(f"on real servers: {replayed.wrong_on_real_servers or 'nothing is wrong'}")


if __name__ == "__main__":
    main()
