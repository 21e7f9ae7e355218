"""What `dualwrite doctor` finds, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """Dual writes work, with a limit that the remedy names."""
    FAIL = "fail"
    """Dual writes do not work, or lose what they promise."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding, and how to mend it where it is not well."""

    where: str
    what: str
    found: str
    verdict: Verdict = Verdict.OK
    remedy: str | None = None


def warning(where: str, what: str, found: str, remedy: str) -> Check:
    """A finding of `Verdict.WARN`."""
    return Check(where, what, found, Verdict.WARN, remedy)


def failure(where: str, what: str, found: str, remedy: str) -> Check:
    """A finding of `Verdict.FAIL`."""
    return Check(where, what, found, Verdict.FAIL, remedy)
