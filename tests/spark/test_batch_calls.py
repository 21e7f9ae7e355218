"""Several calls for one batch: each is written once, or refused as a whole. Without Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from spark_sink.driver.batch_calls import BatchCalls, Run
from spark_sink.driver.finisher import CommitSummary
from spark_sink.driver.phases import PhaseTimes
from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.store.rules import check_query_id, owner_of, query_of_call

QUERY = "0f2b"


class Application:
    """Processes that write one batch after another, call by call; the store is a dictionary."""

    def __init__(self) -> None:
        self.decided: dict[tuple[str, int], str] = {}
        self.calls = BatchCalls()

    def process(self, contents: str, run: str | None = "run", batch: int = 7, dies_after: int | None = None) -> None:
        for number, content in enumerate(contents):
            if number == dies_after:
                break
            with self.calls.call(Run("s", QUERY, run), batch) as call:
                key = (call.query_id, batch)
                known = self.decided.get(key)
                summary = CommitSummary(known is None, 0, 0, 0, 0, 0, PhaseTimes(), known)
                self.decided.setdefault(key, content)
                following = (query_of_call(QUERY, call.number + 1), batch) in self.decided
                call.check_content(summary, content, partial(bool, following))

    def written(self, batch: int = 7) -> str:
        return "".join(content for (_, of), content in sorted(self.decided.items()) if of == batch)


@pytest.mark.parametrize(
    ("first", "dies_after", "again", "written", "refused"),
    [
        ("ab", 2, "ab", "ab", False),
        ("ab", 1, "ab", "ab", False),
        ("aa", 1, "aa", "aa", False),
        ("abc", 2, "abc", "abc", False),
        ("ab", 1, "ba", "a", True),  # as from a loop over a set
        ("abc", 2, "acb", "ab", True),
        ("ab", 2, "c", "ab", True),
        ("a", 1, "cd", "a", True),  # two calls instead of one
        ("a", 1, "c", "a", False),  # the only call of a batch is skipped, with any values
    ],
)
def test_a_batch_that_is_repeated(first: str, dies_after: int, again: str, written: str, refused: bool) -> None:
    application = Application()
    application.process(first, "first", dies_after=dies_after)
    if refused:
        with pytest.raises(SinkError, match="the same order as the first time"):
            application.process(again, "second")
    else:
        application.process(again, "second")
    assert application.written() == written


def test_runs_and_batches_count_their_own_calls() -> None:
    application = Application()
    application.process("ab", dies_after=1)
    application.process("x", run="another", batch=9)  # of a second query under one query_id
    application.process("b")
    application.process("c", batch=8)
    assert (application.written(7), application.written(8), application.written(9)) == ("ab", "c", "x")


def test_calls_without_an_order_are_refused() -> None:
    application = Application()
    with ThreadPoolExecutor(1) as another:
        application.process("a")
        with pytest.raises(SinkError, match="from a second thread"):
            another.submit(application.process, "b").result(60)
        with application.calls.call(Run("s", QUERY, "run"), 8):
            for batch in (8, 9):
                with pytest.raises(SinkError, match="while a call for batch 8 is running"):
                    another.submit(application.process, "b", batch=batch).result(60)
        application.process("a", run=None, batch=9)
        with pytest.raises(SinkError, match="cannot tell a second call from a new start"):
            application.process("b", run=None, batch=9)
    assert (application.written(7), application.written(8), application.written(9)) == ("a", "", "a")


def test_nothing_follows_a_call_that_failed() -> None:
    application = Application()
    with pytest.raises(ZeroDivisionError), application.calls.call(Run("s", QUERY, "run"), 7):
        raise ZeroDivisionError
    with pytest.raises(SinkError, match="after a call that failed"):
        application.process("a")
    application.process("ab", run="the next start")
    assert application.written() == "ab"


def test_memory_does_not_grow_with_the_starts_of_queries() -> None:
    application = Application()
    for start in range(2000):
        application.process("a", run=str(start))
    assert len(application.calls._last) == 1000


@pytest.mark.parametrize("query_id", ["job:a", "versioned job:a", "orders#2", "", "q" * 255])
def test_an_invalid_call_id_is_refused(query_id: str) -> None:
    with pytest.raises(SinkOptionError, match="is not allowed"):
        check_query_id(query_id)


@pytest.mark.parametrize("number", [1, 2, 10])
def test_a_call_belongs_to_its_query(number: int) -> None:
    assert owner_of(query_of_call(QUERY, number)) == QUERY


def test_a_signal_while_a_call_begins_leaves_none_running() -> None:
    """The handler raises as soon as the lock is released, with the number given."""

    class Struck:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            raise KeyboardInterrupt

    calls = BatchCalls()
    lock, calls._lock = calls._lock, Struck()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt), calls.call(Run("s", QUERY, "run"), 7):
        pass
    calls._lock = lock
    with pytest.raises(SinkError, match="after a call that failed"), calls.call(Run("s", QUERY, "run"), 7):
        pass
    with calls.call(Run("s", QUERY, "run"), 8) as call:
        assert call.number == 1
