"""A history of a world as a story: a numbered exchange between named parties, and the changes of each step.

A step is known by its *sentence*, which `world.py` gives it. `STEPS` has the sender, the receiver and the fate of each
kind of sentence; `replay.py` carries the same steps out on real servers. A story is kept as JSON lines: its setting,
then one line for each step.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from tests.proof.kafka_log import Batch, Marker
from tests.proof.kafka_model import PROFILES, UPGRADED, Kafka, Profile
from tests.proof.shape import ONE_RECORD, Shape
from tests.proof.world import Budget, Rules, World

OPERATOR: Final = "operator"
COORDINATOR: Final = "coordinator"
LEADER: Final = "leader of orders-0"
DATABASE: Final = "database"
FOREIGNER: Final = "foreign program"

_NOTHING: Final = "-"


class Fate(StrEnum):
    """The fate of a request, or an event of its own."""

    ANSWERED = "answered"
    NO_MARKER = "answered with no marker"
    CONNECTION_GONE = "its connection is gone"
    UNHEARD = "carried out, and the response lost"
    LOST = "lost"
    DELAYED = "delayed, and its connection lost"
    GIVEN_UP = "delayed, and its caller gives up"
    KILLED = "its process is killed"
    KILLED_UNHEARD = "carried out, and its process killed"
    KILLED_DELAYED = "delayed, and its process killed"
    LATE = "arrives late"
    MARKER = "the marker is written"
    TIMEOUT = "the transaction is aborted by its timeout"
    FOREIGN = "a foreign program initialises the id"
    FORGOTTEN = "the id is forgotten"
    OPERATOR_SENDS = "an operator sends a request, which may arrive at any time"
    CONNECTION_ENDED = "the database ends a connection"
    FAILED_OVER = "a standby takes over"
    RESTORED = "the database is restored"
    LAPSED = "a lease expires"
    MAINTAINED = "a pool's background does something"
    COMMIT_LATE = "a delayed COMMIT takes effect"
    COMMIT_DROPPED = "a delayed COMMIT is dropped"
    RECOVER = "recover() is called"
    COMPLETE = "the transaction is complete"
    MOVED = "the coordinator moves"
    UPGRADED = "the cluster is upgraded"
    AWAY = "finds Kafka away; it may arrive later"
    OUTAGE = "Kafka cannot be reached any more"
    BACK = "Kafka can be reached again"
    DELETED = "retention deletes what is in the log"
    MOMENT = "goes on"


class Kind(NamedTuple):
    """A kind of step. The pattern may name the process `p`, the request `asks` and the `reply`."""

    fate: Fate
    pattern: re.Pattern[str]
    sender: str = "P{p}"
    receiver: str | None = None
    """None: the server of the request."""


def _kind(fate: Fate, pattern: str, sender: str = "P{p}", receiver: str | None = None) -> Kind:
    return Kind(fate, re.compile(rf"^(\[slot \d+\] )?{pattern}$"), sender, receiver)


_P: Final = r"P(?P<p>\d+)"

_SQL: Final = r": (?P<asks>(SELECT|INSERT|UPDATE|DELETE) .*)"

STEPS: Final = (
    _kind(Fate.UNHEARD, _P + _SQL + r" is carried out, and the connection lost", receiver=DATABASE),
    _kind(Fate.ANSWERED, _P + _SQL + r" -> (?P<reply>.*)", receiver=DATABASE),
    _kind(Fate.LOST, _P + r" cannot reach the leases", receiver=DATABASE),
    _kind(Fate.LAPSED, r"the lease of \S+-\d+ expires(, whose owner is dead)?", DATABASE, DATABASE),
    _kind(Fate.MAINTAINED, _P + r"'s background (?P<asks>.*)", receiver="P{p}"),
    _kind(Fate.ANSWERED, _P + r" (?P<asks>reads the row without its lock|finds the row locked)", receiver=DATABASE),
    _kind(Fate.ANSWERED, _P + r" (?P<asks>makes what it read durable)", receiver=DATABASE),
    _kind(Fate.ANSWERED, _P + r" (?P<asks>finds '.*' on another connection)", receiver=DATABASE),
    _kind(Fate.GIVEN_UP, _P + r" (?P<asks>waits in vain for the standby)", receiver=DATABASE),
    _kind(Fate.FAILED_OVER, r"a standby takes over, (?P<asks>without .*)", DATABASE, DATABASE),
    _kind(Fate.RESTORED, r"the database is restored, (?P<asks>without .*)", OPERATOR, DATABASE),
    _kind(Fate.NO_MARKER, _P + r": (?P<asks>EndOf.*) -> (?P<reply>no marker( yet)?)"),
    _kind(Fate.UNHEARD, _P + r": (?P<asks>.*) is carried out, and the response (?P<reply>.*) lost"),
    _kind(Fate.DELAYED, _P + r": (?P<asks>.*) is delayed, and its connection lost"),
    _kind(Fate.GIVEN_UP, _P + r": (?P<asks>.*) is delayed, and its caller gives up"),
    _kind(Fate.AWAY, _P + r": (?P<asks>.*) finds Kafka away"),
    _kind(Fate.ANSWERED, _P + r": (?P<asks>.*) -> (?P<reply>.*)"),
    _kind(Fate.ANSWERED, _P + r" hears: (?P<reply>.*)"),
    _kind(Fate.UNHEARD, _P + r" does not hear the response to (?P<asks>.*)"),
    _kind(Fate.MOMENT, _P + r" (?P<asks>goes on (at once|after a moment)|notices that Kafka is back)", receiver="P{p}"),
    _kind(Fate.OUTAGE, r"Kafka cannot be reached any more", COORDINATOR, COORDINATOR),
    _kind(Fate.BACK, r"Kafka can be reached again", COORDINATOR, COORDINATOR),
    _kind(Fate.DELETED, r"retention deletes what is in the log", LEADER, LEADER),
    _kind(Fate.CONNECTION_GONE, _P + r" finds its connection gone( at COMMIT)?", receiver=DATABASE),
    _kind(Fate.ANSWERED, _P + r" (?P<asks>locks the row and reads it|reads the row under its lock)", receiver=DATABASE),
    _kind(Fate.ANSWERED, _P + r" (?P<asks>finds the row locked or changed)", receiver=DATABASE),
    _kind(Fate.ANSWERED, _P + r" (?P<asks>locks the row and writes .*)", receiver=DATABASE),
    _kind(Fate.ANSWERED, _P + r" (?P<asks>commits the database)", receiver=DATABASE),
    _kind(Fate.UNHEARD, _P + r" (?P<asks>commits the database), and does not hear of it", receiver=DATABASE),
    _kind(Fate.LOST, _P + r"'s (?P<asks>COMMIT) is lost", receiver=DATABASE),
    _kind(Fate.DELAYED, _P + r"'s (?P<asks>COMMIT) is delayed, and its connection lost", receiver=DATABASE),
    _kind(Fate.KILLED, _P + r" is killed(, and its COMMIT lost)?", OPERATOR, "P{p}"),
    _kind(Fate.KILLED_UNHEARD, _P + r" is killed after its (?P<asks>COMMIT)", OPERATOR, "P{p}"),
    _kind(Fate.KILLED_DELAYED, _P + r" is killed, and its (?P<asks>COMMIT) delayed", OPERATOR, "P{p}"),
    _kind(Fate.KILLED_DELAYED, _P + r" is killed, and (?P<asks>.*) may arrive later", OPERATOR, "P{p}"),
    _kind(Fate.LATE, r"late: (?P<asks>.*) -> (?P<reply>.*)", "network"),
    _kind(Fate.MARKER, r"Kafka writes the marker( of .*)?", COORDINATOR, LEADER),
    _kind(Fate.COMPLETE, r"Kafka completes the transaction", COORDINATOR, COORDINATOR),
    _kind(Fate.MOVED, r"((?P<asks>WriteMarker.*) is written, and )?the coordinator moves", COORDINATOR, LEADER),
    _kind(Fate.UPGRADED, r"the cluster is upgraded", OPERATOR, COORDINATOR),
    _kind(Fate.OPERATOR_SENDS, r"an operator (?P<asks>terminates the id|aborts in one partition)", OPERATOR, "network"),
    _kind(Fate.TIMEOUT, r"Kafka aborts by the timeout", COORDINATOR, COORDINATOR),
    _kind(Fate.FOREIGN, r"a foreign program initialises the id(?P<ours> with our timeout)?", FOREIGNER, COORDINATOR),
    _kind(Fate.FORGOTTEN, r"Kafka forgets the id", COORDINATOR, COORDINATOR),
    _kind(Fate.COMMIT_LATE, r"the delayed COMMIT of " + _P + " takes effect", DATABASE, DATABASE),
    _kind(Fate.COMMIT_DROPPED, r"the delayed COMMIT of " + _P + " is dropped", DATABASE, DATABASE),
    _kind(Fate.CONNECTION_ENDED, r"the database ends P(?P<p>\d+)'s connection", DATABASE, "P{p}"),
    _kind(Fate.RECOVER, r"everything is over; recover\(\) is called", OPERATOR, "a new process"),
)
"""The first that matches counts."""

_LEADERS: Final = ("Produce(", "EndOf(", "RecordsOf(", "RepairOf(", "WriteMarker(")

_SHORTER: Final = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        (r"transactional_id='\w+'(, )?", ""),
        (r"transaction_timeout_ms=\d+, ", ""),
        (r", transaction_version=\d+", ""),
        (r", start_ms=-?\d+, timeout_ms=-?\d+", ""),
        (r", ongoing_producer_id=-1, ongoing_producer_epoch=-1", ""),
        (r", producer_id=-1, producer_epoch=-1", ""),
        (r"ongoing_producer_id=(-?\d+), ongoing_producer_epoch=(-?\d+)", r"ongoing \1:\2"),
        (r"producer_id=(-?\d+), producer_epoch=(-?\d+)", r"\1:\2"),
        (r"error_code=0(, )?", ""),
        (r", partitions=\(.*?\)\)|, partitions=\(.*?\),?\)", ")"),
        (r"enable_2pc", "2pc"),
        (r"keep_prepared_txn", "keep"),
        (r"9223372036854775807", "max"),
        (r"state='(\w*)'", r"\1"),
        (r"committed=True", "commit"),
        (r"committed=False", "abort"),
        (r"(\w+)=True", r"\1"),
        (r", \w+=False", ""),
        (r"\b\w+Response\((.*)\)$", r"\1"),
    )
)


_LONGEST: Final = 110
_ERROR: Final = re.compile(r"error_code=(\d+)")


class Setting(NamedTuple):
    """The setting of a story: all parameters of `Rules` and the budget."""

    tier: int
    budget: Budget
    written: tuple[tuple[bytes, ...], ...]
    after_crash: tuple[bytes, ...] = ()
    by_commit: bool = False
    shape: Shape = ONE_RECORD
    is_plain: bool = False
    recoveries: int = 0
    services: int = 0
    pools: bool = False

    @property
    def profile(self) -> Profile:
        """Return the kind of broker."""
        return UPGRADED if self.budget.upgrades else PROFILES[self.tier]

    def rules(self, kind: type[Rules] = Rules) -> Rules:
        """Return the possible steps there."""
        return kind(
            self.profile,
            self.written,
            self.after_crash,
            by_commit=self.by_commit,
            shape=self.shape,
            is_plain=self.is_plain,
            recoveries=self.recoveries,
            services=self.services,
            fails_over=self.budget.failovers > 0,
            pools=self.pools,
        )


class UnknownStepError(Exception):
    """A sentence that no row of `STEPS` matches."""


class Step(NamedTuple):
    """One step, and how the world stands after it."""

    sentence: str
    row: str
    table: tuple[str, ...]
    log: tuple[str, ...]
    coordinator: str

    @property
    def kind(self) -> Kind:
        """Return the kind of step. Raises UnknownStepError."""
        return kind_of(self.sentence)


class Story(NamedTuple):
    """A history and the error at its end."""

    setting: Setting | None
    steps: tuple[Step, ...]
    wrong: str

    def __str__(self) -> str:
        return "\n".join((*_told(self.steps), f"WRONG: {self.wrong}"))

    def lines(self) -> Iterator[str]:
        """Yield the story as JSON lines."""
        assert self.setting is not None, "a story that is kept has a setting"
        values = {name: getattr(self.setting, name)._asdict() for name in ("budget", "shape")}
        given = self.setting._asdict() | values | {"wrong": self.wrong}
        yield json.dumps(given, default=_as_text)
        for number, step in enumerate(self.steps, 1):
            yield json.dumps({"number": number, **_exchanged(step), **step._asdict()})

    def save(self, path: Path) -> None:
        """Write the story to a file."""
        path.write_text("".join(f"{line}\n" for line in self.lines()))


def read_story(lines: Iterable[str]) -> Story:
    """Return the story that `Story.lines` has written."""
    given, *steps = (json.loads(line) for line in lines if line.strip())
    wrong = given.pop("wrong")
    setting = Setting(
        **given
        | {
            "budget": Budget(**given["budget"]),
            "shape": Shape(**given["shape"]),
            "written": tuple(tuple(value.encode() for value in values) for values in given["written"]),
            "after_crash": tuple(value.encode() for value in given["after_crash"]),
        }
    )
    return Story(setting, tuple(_step_of(step) for step in steps), wrong)


def _step_of(given: dict[str, Any]) -> Step:
    return Step(given["sentence"], given["row"], tuple(given["table"]), tuple(given["log"]), given["coordinator"])


def _exchanged(step: Step) -> dict[str, str]:
    """Return sender, receiver and fate; empty for a sentence that no row of `STEPS` matches."""
    try:
        sender, receiver = _parties(step.sentence)
    except UnknownStepError:
        return {}
    return {"from": sender, "to": receiver, "fate": step.kind.fate}


def _as_text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def narrate(rules: Rules, start: World, path: Sequence[int], wrong: str, setting: Setting | None = None) -> Story:
    """Return the story of the steps that were taken from `start`: each is a position in `rules.steps`."""
    world, steps = start, []
    for at in path:
        sentence, world = list(rules.steps(world))[at]
        steps.append(step_to(sentence, world))
    return Story(setting, tuple(steps), wrong)


def step_to(sentence: str, world: World) -> Step:
    """Return the step that has led to `world`."""
    metadata = world.kafka.metadata
    return Step(
        sentence,
        world.row[0] or _NOTHING,
        tuple(sorted(value.decode() for value in world.table)),
        tuple(_entries_of_all(world)),
        _NOTHING if metadata is None else f"{metadata.state.label} {metadata.producer_id}:{metadata.producer_epoch}",
    )


def _entries_of_all(world: World) -> Iterator[str]:
    """Yield the records in the partitions of each id of a pool."""
    yield from _entries(world.kafka)
    for slot, lane in enumerate(world.beside, 1):
        yield from (f"[slot {slot}] {entry}" for entry in _entries(lane.kafka))


def _entries(kafka: Kafka) -> Iterator[str]:
    """Yield the records in each partition, and where consumers stand."""
    for number, log in enumerate(kafka.logs):
        for entry in log:
            yield _entry(entry) if len(kafka.logs) == 1 else f"{number}/{_entry(entry)}"
    for entry in kafka.offsets:
        yield f"offsets/{_entry(entry)}"


def kind_of(sentence: str) -> Kind:
    """Return the kind of step that a sentence tells. Raises UnknownStepError."""
    return _matched(sentence)[0]


def process_of(sentence: str) -> int | None:
    """Return the number of the process that a sentence names; None if it names none."""
    named = _matched(sentence)[1].groupdict().get("p")
    return None if named is None else int(named)


def brief(sentence: str) -> str:
    """Return a sentence as one short line: its fate, and its message. It tells a step from others as well."""
    line = f"{kind_of(sentence).fate}: {' => '.join(_said(sentence))}"
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST - 12]}... {zlib.crc32(line.encode()):08x}"  # no other line is shortened to the same


class Wanted(NamedTuple):
    """The parts of a line of `brief`."""

    line: str
    fate: Fate
    process: int | None


def wanted(line: str) -> Wanted:
    """Read a line that `brief` has made."""
    fate, _, said = line.partition(": ")
    process = re.search(r"\bP(\d+)", said)
    return Wanted(line, Fate(fate), None if process is None else int(process[1]))


def _matched(sentence: str) -> tuple[Kind, re.Match[str]]:
    for kind in STEPS:
        found = kind.pattern.match(sentence)
        if found is not None:
            return kind, found
    raise UnknownStepError(f"no row of STEPS in tests/proof/story.py matches {sentence!r}: add one, and what it does")


def _entry(entry: Batch | Marker) -> str:
    """Return `pair=records` for a batch, `pair+` for a commit marker, `pair-` for an abort marker."""
    pair = f"{entry.producer_id}:{entry.producer_epoch}"
    if isinstance(entry, Batch):
        return f"{pair}={b','.join(entry.records).decode()}"
    return f"{pair}{'+' if entry.committed else '-'}"


# ---- telling --------------------------------------------------------------------------------------------------------


def _told(steps: Sequence[Step]) -> Iterator[str]:
    before = Step("", _NOTHING, (), (), _NOTHING)
    for number, step in enumerate(steps, 1):
        for at, line in enumerate(_exchange(step.sentence)):
            yield f"{number:3}. {line}" if at == 0 else f"     {line}"
        for change in _changes(before, step):
            yield f"         {change}"
        before = step


def _exchange(sentence: str) -> Iterator[str]:
    try:
        kind, _ = _matched(sentence)
    except UnknownStepError:
        yield _shorter(sentence)
        return
    asked, *replied = _said(sentence)
    is_plain = kind.fate in (Fate.ANSWERED, Fate.NO_MARKER) or asked.endswith(kind.fate)
    yield asked if is_plain else f"{asked} ({kind.fate})"
    sender, receiver = _parties(sentence)
    heard = "nobody" if kind.fate in (Fate.UNHEARD, Fate.LATE) else sender
    yield from (f"{receiver} -> {heard}: {reply}" for reply in replied)


def _said(sentence: str) -> Iterator[str]:
    """Yield sender, receiver and message, and if there is one, the reply."""
    kind, found = _matched(sentence)
    named, (sender, receiver) = found.groupdict(), _parties(sentence)
    what = kind.fate if named.get("asks") is None else _shorter(named["asks"])
    if named.get("ours"):
        what += named["ours"]
    yield f"{sender}: {what}" if sender == receiver else f"{sender} -> {receiver}: {what}"
    if named.get("reply") is not None:
        yield _shorter(named["reply"])


def _parties(sentence: str) -> tuple[str, str]:
    kind, found = _matched(sentence)
    named = found.groupdict()
    receiver = kind.receiver
    if receiver is None:
        receiver = LEADER if (named.get("asks") or "").startswith(_LEADERS) else COORDINATOR
    return kind.sender.format(p=named.get("p")), receiver.format(p=named.get("p"))


def _shorter(text: str) -> str:
    for pattern, put in _SHORTER:
        text = pattern.sub(put, text)
    return _ERROR.sub(lambda found: ErrorCode(int(found[1])).name.upper(), text) or "ok"


def _changes(before: Step, after: Step) -> Iterator[str]:
    if after.row != before.row:
        yield f"row: {before.row} => {after.row}"
    if after.table != before.table:
        yield f"table: {' '.join(after.table) or _NOTHING}"
    if after.coordinator != before.coordinator:
        yield f"coordinator: {before.coordinator} => {after.coordinator}"
    if after.log != before.log:
        yield f"log: {' '.join(after.log) or _NOTHING}"
