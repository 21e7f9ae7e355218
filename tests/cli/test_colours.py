"""Colours repeat the meaning of words, and only for a reader who wants them."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout

import pytest

from dualwrite.cli.colours import Meaning, meaning_of
from dualwrite.cli.doctor_checks import Verdict
from dualwrite.cli.failures import OneLineGroup
from dualwrite.cli.output import print_table, table, wrapped
from dualwrite.recipes.recovery.plan import NEEDS_OPERATOR, Action
from spark_sink.driver.recovery import Action as SparkAction
from spark_sink.store.tables import BatchStatus

HEADERS = ("Verdict", "TransactionalId", "Found")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _wants_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def shown(stream: io.StringIO, *, error: bool = False) -> str:
    """Return the output of a table, or an error, on a stream."""
    with redirect_stdout(stream), redirect_stderr(stream):
        if not error:
            print_table(HEADERS, [("fail", "orders-1", "x"), ("ok", "-", "x")])
        else:
            with pytest.raises(SystemExit):
                OneLineGroup("dualwrite").main(["nonsense"])
    return stream.getvalue()


PLAIN = "Verdict  TransactionalId  Found\nfail     orders-1         x\nok       -                x\n"


def test_cells_have_the_colour_of_their_meaning() -> None:
    written = shown(Terminal())
    assert "\x1b[31mfail\x1b[0m" in written
    assert "\x1b[36morders-1\x1b[0m" in written
    assert "\x1b[32mok\x1b[0m" in written
    assert re.sub(r"\x1b\[\d+m", "", written) == PLAIN


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_without_colours_there_are_no_escapes(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert shown(Terminal()) == PLAIN
    assert "\x1b" not in shown(Terminal(), error=True)


def test_a_file_gets_no_escape() -> None:
    assert shown(io.StringIO()) == PLAIN
    assert "\x1b" not in shown(io.StringIO(), error=True)


def test_the_name_before_an_error_is_red() -> None:
    assert shown(Terminal(), error=True).startswith("\x1b[31mdualwrite:\x1b[0m No such command 'nonsense'")


def test_every_word_of_a_state_has_a_meaning() -> None:
    assert {str(each) for each in Verdict if meaning_of("Verdict", each) is None} == set()
    assert {str(each) for each in Action if meaning_of("Action", each) is None} == {"nothing"}
    assert {str(each) for each in SparkAction if meaning_of("Action", each) is None} == set()
    assert {str(each) for each in BatchStatus if meaning_of("Status", each) is None} == set()
    assert {meaning_of("Action", each) for each in NEEDS_OPERATOR} == {Meaning.ERROR}


WIDE = ("TransactionalId", "Action", "Pair", "TopicPartitions", "Error")
IDS = ("orders-eu-central-12", "commit", "1795342526754017:0", ",".join(f"orders-{n}" for n in range(9)))
LONG = "the coordinator of orders-eu-central-12 does not answer: NOT_COORDINATOR; a later round checks again"


@pytest.mark.parametrize("width", [200, 120, 80, 60, 40])
def test_no_word_is_broken_at_any_width(width: int) -> None:
    lines = [line.plain for line in table(WIDE, [(*IDS, LONG)], width)]
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in re.split(r"[\s,]+", line) if word}
    assert words == {word for text in (*WIDE, *IDS, LONG) for word in re.split(r"[\s,]+", text)}


def test_a_word_that_is_too_long_stays_whole() -> None:
    assert wrapped("see aaaaaaaaaaaaaaaa there", 10) == ["see", "aaaaaaaaaaaaaaaa", "there"]
    assert wrapped("", 10) == [""]
    assert wrapped("a-0,b-1,c-2", 8) == ["a-0,b-1,", "c-2"]
