"""The invariants after Kafka was away under load, besides that both sides are equal.

With "store": no block failed because of Kafka, and no block is left in the database. `test_key_order.py` has the order
of a row's records.

With "refuse": each key that has one writer (one transactional id, and one living process at a time) is in the order of
its commits. No transaction of a writer waited for its client for as long as a second, or as many seconds as processes
wanted each CPU. A writer that knew of Kafka's absence said so within 100 ms; one in a hundred may wait for a CPU.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dualwrite import errors
from dualwrite.errors import KafkaError, StoredBlocksError, StoreFullError
from tests.crash.chaos_database import ChaosDatabase
from tests.crash.chaos_job import BEGUN, COMMITTED, NEW_WRITER, ROLLED_BACK, UNKNOWN, GivenUpError, Job
from tests.crash.chaos_verdict import TOLD, Findings, Verdict
from tests.support.topics import read_topic

MOST_IDLE_S: Final = 1.0
MOST_ANSWER_S: Final = 0.1
ONLY_KEY: Final = re.compile(r"w\d+")
GAVE_UP: Final = GivenUpError.__name__
CUT: Final = "cut short by a kill"
HELD: Final = "RowLockTimeoutError"
"""A process that stands still keeps the lock of a row."""
_ERROR: Final = re.compile(r"(\w+)\(")


@dataclass
class Absence:
    """A time without Kafka, in seconds since 1970, and the database's state meanwhile."""

    gone_s: float
    back_s: float = float("inf")
    """When it was about to come back."""
    there_s: float = float("inf")
    """When it had come back."""
    oldest_idle_s: float = 0.0
    """The longest that a transaction of the writers waited for its client while Kafka was away."""
    crowd: float = 1.0
    """How many processes of the machine wanted each CPU, at the worst."""
    stored: int = 0
    stored_bytes: int = 0
    """The stored blocks when it was about to come back."""
    published_s: float | None = None
    """How long after that all of it was published."""

    @property
    def is_over(self) -> bool:
        return self.back_s != float("inf")


class Told(NamedTuple):
    """One block, as its caller saw it."""

    writer: str
    """A writer in one life of one process."""
    begun_s: float
    ended_s: float | None
    how: str
    """COMMITTED, CUT, or the name of the error."""

    @property
    def answer_s(self) -> float:
        assert self.ended_s is not None
        return self.ended_s - self.begun_s


@dataclass
class AwayFindings(Findings):
    """The results of the blocks of each absence."""

    absences: list[tuple[Absence, list[Told]]] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    """How long each refusal took of a writer or pool that knew."""
    ordered: int = 0
    """Records of keys with one writer."""

    def lines(self) -> Iterator[str]:
        """For people."""
        for absence, told in self.absences:
            counted = ", ".join(f"{number} {how}" for how, number in sorted(Counter(each.how for each in told).items()))
            committed_s = [each.answer_s for each in told if each.how == COMMITTED]
            yield (
                f"away for {absence.back_s - absence.gone_s:.1f} s: {counted}; committed in {_centiles(committed_s)}; "
                f"longest idle in transaction {absence.oldest_idle_s * 1000:.0f} ms ({absence.crowd:.1f} processes for "
                "each CPU)"
            )
            if absence.stored:
                published = "later" if absence.published_s is None else f"within {absence.published_s:.1f} s"
                yield (
                    f"  stored at the end: {absence.stored} blocks, {absence.stored_bytes} bytes, published "
                    f"{published} (the broker took {absence.there_s - absence.back_s:.1f} s to start)"
                )
        if self.refused_s:
            yield (
                f"refused where it was known: {len(self.refused_s)} in {_centiles(self.refused_s)}; "
                f"{_slow(self.refused_s)} took {MOST_ANSWER_S * 1000:.0f} ms or longer"
            )
        yield f"records of keys with one writer, in order: {self.ordered}"


def _slow(answers_s: Sequence[float]) -> int:
    return sum(each >= MOST_ANSWER_S for each in answers_s)


def _centiles(answers_s: Sequence[float]) -> str:
    if not answers_s:
        return "none"
    centiles = statistics.quantiles([*answers_s] * 2, n=1000, method="inclusive")
    p50, p99, p999 = (centiles[index] * 1000 for index in (499, 989, 998))
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, p99.9 {p999:.0f} ms, longest {max(answers_s) * 1000:.0f} ms"


class AwayVerdict(Verdict):
    """The checks of a run in which Kafka was away."""

    def __init__(
        self, job: Job, database: ChaosDatabase, absences: Sequence[Absence], *, refuses: bool, only_of_kafka: bool
    ) -> None:
        """`only_of_kafka`: blocks may fail, but not because of Kafka."""
        super().__init__(job, database, AwayFindings())
        self._only_of_kafka = only_of_kafka
        self._absences = absences
        self._refuses = refuses

    def reach(self) -> AwayFindings:
        told = self._all_told()
        found = super().reach()
        assert isinstance(found, AwayFindings)
        for absence in self._absences:
            found.absences.append((absence, [each for each in told if _is_within(absence, each)]))
        if self._refuses:
            self._expect_quick_refusals(found)
        else:
            self._expect_no_refusals(found)
        self._expect_nothing_is_stored()
        found.ordered = self._count_ordered()
        return found

    def _all_told(self) -> list[Told]:
        """Every block of every process."""
        writers: Counter[str] = Counter()
        begun: dict[str, tuple[str, float]] = {}
        ended: dict[str, tuple[float, str]] = {}
        for line in self._journal_lines():
            name, told, at, *rest = line.split(" ", 3)
            if told == NEW_WRITER:
                writers[name] += 1
            elif told == BEGUN:
                process = name.partition("/")[0]
                begun[name] = f"{process}, {writers[process]}", float(at)
            elif told in TOLD:
                ended[name] = float(at), _how(told, rest)
        never: tuple[None, str] = None, CUT
        return [Told(writer, at_s, *ended.get(name, never)) for name, (writer, at_s) in begun.items()]

    # ---- "store" --------------------------------------------------------------------------------------------

    def _expect_no_refusals(self, found: AwayFindings) -> None:
        for absence, told in found.absences:
            failed = Counter(each.how for each in told if not self._may_be(each.how))
            if failed:
                self._problems.append(f"blocks failed while Kafka was away since {absence.gone_s:.3f}: {failed}")

    def _may_be(self, how: str) -> bool:
        """Whether that may become of a block while Kafka is away."""
        if how in (COMMITTED, GAVE_UP, CUT, HELD):
            return True
        error = getattr(errors, how, Exception)
        return self._only_of_kafka and not issubclass(error, (KafkaError, StoredBlocksError, StoreFullError))

    def _expect_nothing_is_stored(self) -> None:
        if any(left := self._database.stored()):
            self._problems.append(f"the database still stores (blocks, bytes): {left}")

    def _count_ordered(self) -> int:
        """Count the records of those keys: each is a sequence, so the checker has compared their order."""
        return sum(bool(ONLY_KEY.fullmatch(key)) for key, _ in read_topic(self._job.bootstrap_servers, self._job.topic))

    # ---- "refuse" -------------------------------------------------------------------------------------------

    def _expect_quick_refusals(self, found: AwayFindings) -> None:
        for absence, told in found.absences:
            if absence.oldest_idle_s >= MOST_IDLE_S * absence.crowd:
                self._problems.append(
                    f"a transaction idled for {absence.oldest_idle_s:.3f} s, with {absence.crowd:.1f} processes for "
                    "each CPU"
                )
            found.refused_s += _refusals_where_it_was_known(told)
        if not found.refused_s:
            self._problems.append("no block was refused where it was known that Kafka is away")
        elif _slow(found.refused_s) > len(found.refused_s) / 100:
            self._problems.append(f"refusals were slow: {len(found.refused_s)} in {_centiles(found.refused_s)}")


def _how(told: str, rest: Sequence[str]) -> str:
    if told == COMMITTED:
        return COMMITTED
    named = _ERROR.search(rest[0]) if rest and told in (ROLLED_BACK, UNKNOWN) else None
    return told if named is None else named[1]


def _is_within(absence: Absence, told: Told) -> bool:
    """Whether a block began without Kafka, and had ended before it came back."""
    if not absence.gone_s <= told.begun_s < absence.back_s:
        return False
    return told.ended_s is None or told.ended_s <= absence.back_s


def _refusals_where_it_was_known(told: Sequence[Told]) -> list[float]:
    """How long refusals took that began after a first one of their writer or pool had ended."""
    refused = [each for each in told if each.how == "KafkaUnreachableError" and each.ended_s is not None]
    known_s: dict[str, float] = {}
    for each in refused:
        assert each.ended_s is not None
        known_s[each.writer] = min(each.ended_s, known_s.get(each.writer, each.ended_s))
    return [each.answer_s for each in refused if each.begun_s > known_s[each.writer]]
