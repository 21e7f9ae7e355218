"""Tables in terminals of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dualwrite.cli import output
from dualwrite.cli.output import columns_that_fit, print_table

HEADERS = ("TransactionalId", "Pair", "Error")
ROWS = [("orders-1", "1795342526754017:0", "-"), ("orders-eu-12", "7:1", "the coordinator is not there " * 3)]


def printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(output, "console", lambda: Console(file=io.StringIO(), width=width, highlight=False))
    print_table(HEADERS, ROWS)
    return capsys.readouterr().out.splitlines()


def test_only_the_last_column_is_wrapped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(57, monkeypatch, capsys)
    assert lines[:3] == [
        "TransactionalId  Pair                Error",
        "orders-1         1795342526754017:0  -",
        "orders-eu-12     7:1                 the coordinator is",
    ]
    assert all(line.startswith(" " * 37) for line in lines[3:])
    assert max(map(len, lines)) <= 57


def test_a_table_too_wide_for_narrow_columns_becomes_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(56, monkeypatch, capsys) == [
        "TransactionalId  orders-1",
        "Pair             1795342526754017:0",
        "Error            -",
        "",
        "TransactionalId  orders-eu-12",
        "Pair             7:1",
        "Error            the coordinator is not there the",
        "                 coordinator is not there the",
        "                 coordinator is not there",
        "",
    ]


def test_columns_give_way_in_their_order() -> None:
    def left(width: int) -> tuple[str, ...]:
        return columns_that_fit(HEADERS, ROWS, width, dispensable=("Error", "TransactionalId"))

    assert left(57) == HEADERS
    assert left(56) == ("TransactionalId", "Pair")
    assert left(20) == ("Pair",)
