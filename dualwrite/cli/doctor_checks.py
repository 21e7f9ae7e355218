"""The results of `dualwrite doctor`, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dualwrite.errors import DualWriteError
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.judge import refusal_of


class Verdict(StrEnum):
    """The severity of a result."""

    OK = "ok"
    WARN = "warn"
    """Dual writes work, with a limit; the remedy says how to lift it."""
    FAIL = "fail"
    """Dual writes do not work, or lose their guarantee."""


@dataclass(frozen=True, slots=True)
class Check:
    """One result, with a remedy if it is not ok."""

    where: str
    what: str
    found: str
    verdict: Verdict = Verdict.OK
    remedy: str | None = None


def warning(where: str, what: str, found: str, remedy: str) -> Check:
    """Return a check of `Verdict.WARN`."""
    return Check(where, what, found, Verdict.WARN, remedy)


def of_error(where: str, error: DualWriteError) -> Check:
    """Return the check of an error with which writers refuse blocks, by the table of the judge."""
    refusal = refusal_of(error)
    return failure(where, refusal.name, " ".join(first_line(error).split()), refusal.remedy)


def failure(where: str, what: str, found: str, remedy: str) -> Check:
    """Return a check of `Verdict.FAIL`."""
    return Check(where, what, found, Verdict.FAIL, remedy)
