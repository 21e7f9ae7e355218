"""A history in a file is the same history."""

from __future__ import annotations

import pytest

from dualwrite.verify.history import (
    Change,
    Deciding,
    Event,
    Fail,
    GroupOffset,
    Invoke,
    Isolation,
    Ok,
    Outcome,
    PartitionAtRest,
    Poll,
    Record,
    RecordAtRest,
    Recover,
    RowAtRest,
    Unknown,
)
from dualwrite.verify.lines import HistoryFormatError, from_lines, to_lines

ONE_OF_EACH: tuple[Event, ...] = (
    Invoke(1.5, "w1", "w1/1", (Change("k", "a"),), (Change("k", "a"), Change("l", "b")), "id-0", "id-0"),
    Deciding(2.0, "w1", "w1/1", (Change("k", "before"),), "4711:5", (Change("k", "read"),)),
    Ok(2.5, "w1", "w1/1"),
    Fail(2.5, "w1", "w1/2", 'Error("with\nlines")'),
    Unknown(2.5, "w1", "w1/3"),
    Recover(3.0, "r", "id-0", Outcome.ROLLED_BACK, "4711:6"),
    Poll(3.0, "reader", Isolation.READ_COMMITTED, "orders-0", (Record(4, "k", "a"),), 6, 7),
    GroupOffset(4.0, 3.5, "reader", "group", "orders-0", 5),
    RowAtRest("k", "a", 12),
    RecordAtRest("orders-0", 4, "k", "a"),
    PartitionAtRest("orders-0", 7, 7),
)


def test_every_event_comes_back_from_its_line() -> None:
    lines = list(to_lines(ONE_OF_EACH))
    assert all(line.count("\n") == 1 for line in lines)
    assert tuple(from_lines(lines)) == ONE_OF_EACH


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ('{"event": "told"}', "KeyError"),
        ('{"event": "ok", "at": 1}', "missing 2 required"),
        ('{"event": "ok", "at": 1, "process": "p", "dual_write": "d", "more": 1}', "more"),
        ("[]", "no event"),
    ],
)
def test_a_line_that_is_no_event_is_named(line: str, said: str) -> None:
    first, *_ = to_lines(())
    with pytest.raises(HistoryFormatError, match=said):
        list(from_lines([first, line]))


@pytest.mark.parametrize("line", ["", "{}", '{"format": "dualwrite history", "version": 2}'])
def test_another_format_is_refused(line: str) -> None:
    with pytest.raises(HistoryFormatError, match="line 1: the first line of a history is"):
        list(from_lines([line]))
