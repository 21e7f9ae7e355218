"""The report card: the passed, failed and expectedly failed cases of each client on each broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import pytest

from .client_folders import ALL_FOLDERS, ClientFolder, On, broker_of, case_of, folder_of
from .known_failures import KNOWN_FAILURES


class Result(StrEnum):
    """The result of a case."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN = "known"
    """It failed, and is listed."""
    NOT_RUN = "not run"


_BY_OUTCOME: Final[Mapping[str, Result]] = {
    "passed": Result.PASSED,
    "failed": Result.FAILED,
    "skipped": Result.NOT_RUN,
}
_REASON_CHARS: Final = 200
_WHAT_COUNTS: Final = (Result.FAILED, Result.KNOWN, Result.PASSED, Result.NOT_RUN)
"""Of a case with several parameters, the first of these counts."""


@dataclass
class Cell:
    """One client on one broker."""

    results: dict[str, Result] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why cases failed."""
    skipped: set[str] = field(default_factory=set)
    """Why cases, or some of their parameters, were not run."""
    seconds: float = 0.0

    def count(self, result: Result) -> int:
        return sum(each == result for each in self.results.values())

    def names(self, result: Result) -> list[str]:
        return sorted(case for case, each in self.results.items() if each == result)

    def __str__(self) -> str:
        if not self.results:
            return "-"
        counts = [f"{self.count(result)} {result}" for result in Result if self.count(result)]
        return f"{', '.join(counts)} ({self.seconds:.0f} s)"


class ReportCard:
    """A plugin of pytest that fills the card while the cases run."""

    def __init__(self, brokers: Sequence[On]) -> None:
        self.brokers = tuple(brokers)
        self.cells: dict[tuple[str, On], Cell] = {
            (client.folder, broker): Cell() for client in ALL_FOLDERS for broker in self.brokers
        }
        self._places: dict[str, tuple[str, On, str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = []
        for item in items:
            client, broker = folder_of(item), broker_of(item)
            if client is not None and broker in self.brokers:
                self._places[item.nodeid] = client.folder, broker, case_of(item)
                wanted.append(item)
        items[:] = wanted

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder, broker, case = self._places[report.nodeid]
        cell = self.cells[folder, broker]
        if report.when == "call":
            cell.seconds += report.duration
        if report.when != "call" and report.outcome == "passed":
            return
        result = Result.KNOWN if hasattr(report, "wasxfail") and report.skipped else _BY_OUTCOME[report.outcome]
        cell.results[case] = min(result, cell.results.get(case, result), key=_WHAT_COUNTS.index)
        if result == Result.FAILED:
            cell.reasons[case] = _reason(report)
        if result == Result.NOT_RUN:
            cell.skipped.add(_reason(report))

    @property
    def has_failures(self) -> bool:
        return any(cell.count(Result.FAILED) for cell in self.cells.values())

    def as_table(self) -> str:
        """For people; failures and skipped cases stand below."""
        header = ["client", "version", *self.brokers]
        rows = [
            [client.name, client.version(), *(str(self.cells[client.folder, broker]) for broker in self.brokers)]
            for client in self._clients()
        ]
        return "\n".join([*_aligned([header, *rows]), *self._notes()])

    def as_json(self) -> str:
        """For programs."""
        clients = [
            {
                "client": client.name,
                "version": client.version(),
                "brokers": {broker: _cell_as_json(self.cells[client.folder, broker]) for broker in self.brokers},
            }
            for client in self._clients()
        ]
        return json.dumps({"clients": clients, "has_failures": self.has_failures}, indent=2)

    def _clients(self) -> list[ClientFolder]:
        return [
            client
            for client in ALL_FOLDERS
            if any(self.cells[client.folder, broker].results for broker in self.brokers)
        ]

    def _notes(self) -> Iterable[str]:
        for client in self._clients():
            for broker in self.brokers:
                cell = self.cells[client.folder, broker]
                for case in cell.names(Result.FAILED):
                    yield f"FAILED  {client.folder}: {case} on {broker}: {cell.reasons[case]}"
                for reason in sorted(cell.skipped):
                    yield f"not run {client.folder} on {broker}: {reason}"
                for case in cell.names(Result.KNOWN):
                    yield f"known   {client.folder}: {case} on {broker}: {KNOWN_FAILURES[client.folder][case].reason}"


def _cell_as_json(cell: Cell) -> dict[str, object]:
    cases = {str(result): cell.names(result) for result in Result}
    return {**cases, "reasons": cell.reasons, "skipped": sorted(cell.skipped), "seconds": round(cell.seconds, 1)}


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return text.strip().splitlines()[0][:_REASON_CHARS] if text.strip() else "no reason given"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
