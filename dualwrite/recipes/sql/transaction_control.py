"""The statements that a block must not send, and the savepoints that it follows, by how each statement begins.

The last statement of a block proves on the server that it runs in the transaction in which the block began. `Refused`
has the rest: for these, that proof comes too late or cannot be had. A text may be refused needlessly, and must never be
let through wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from dualwrite.errors import TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer

_POSTGRES_NAME_BYTES: Final = 63
_SHOWN: Final = 200


# ---- the table -----------------------------------------------------------------------------------------------------


class Refused(Enum):
    """How a refused statement begins, why the last statement of the block is no substitute, and what to do instead."""

    COMMIT = (
        r"(?:COMMIT|END)\b",
        "it would commit the changes of the block so far without their records, and the end of the block could only "
        "report that",
        "let the block end its transaction",
    )
    ROLLBACK = (
        r"(?:ROLLBACK|ABORT)\b",
        "it would undo the changes of the block so far, which the end of the block may not detect (AND CHAIN), and in "
        "autocommit mode later changes would be committed without their records",
        "let an exception end the block, or roll back to a savepoint",
    )
    PREPARE = (
        r"PREPARE +TRANSACTION\b",
        "a COMMIT PREPARED could commit the changes of the block so far at any time, without their records",
        "let the block end its transaction",
    )
    RESET = (
        r"RESET +ALL\b",
        "it resets the setting that identifies the transaction of the block, and the end of the block would take that "
        "for a COMMIT",
        "reset settings by their names",
    )
    SAVEPOINT = (
        r"(?:SAVEPOINT|RELEASE|ROLLBACK(?: +WORK| +TRANSACTION)? +TO)\b",
        "records belong to the savepoint in which they were sent, and the savepoint of this statement cannot be "
        "determined",
        "send it alone, with a name of ASCII letters, or use the savepoints of your library",
    )
    IMPLICIT = (
        "",  # of MySQL, where few statements do not do this
        "MySQL may commit on this kind of statement: the changes of the block so far would be committed without their "
        "records, and the end of the block could only report that",
        "send it before the block or after it",
    )
    HIDDEN = (
        "",
        "it contains a nested comment, or one that some versions of the server execute",
        "leave the comment out",
    )

    def __init__(self, begins: str, because: str, instead: str) -> None:
        self.begins = re.compile(begins, re.IGNORECASE | re.ASCII)
        self.because = because
        self.instead = instead

    def error(self, text: str) -> TransactionEndedInsideError:
        shown = text.strip()
        shown = repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}...")
        return TransactionEndedInsideError(
            f"{shown} was not executed inside a dual write: {self.because}; neither database nor Kafka is changed: "
            f"{self.instead}"
        )


# ---- savepoints ----------------------------------------------------------------------------------------------------


class Step(Enum):
    """The effect of a statement on a savepoint."""

    SET = "set"
    RELEASE = "release"
    ROLL_BACK_TO = "back"


class Savepoint(NamedTuple):
    """A text that does something to one savepoint, and nothing else."""

    step: Step
    name: str

    def follow(self, records: RecordBuffer) -> None:
        """Do to `records` what the executed text did to the database."""
        match self.step:
            case Step.SET:
                records.savepoint(self.name)
            case Step.RELEASE:
                records.release_savepoint(self.name)
            case Step.ROLL_BACK_TO:
                records.roll_back_to_savepoint(self.name)


_SAVEPOINT: Final = re.compile(
    r"(?:(?P<set>SAVEPOINT)|(?P<release>RELEASE)(?: +SAVEPOINT)?"
    r"|(?P<back>ROLLBACK)(?: +WORK| +TRANSACTION)? +TO(?: +SAVEPOINT)?)"
    r" +(?:(?P<plain>[A-Z_][\w$]*)|\"(?P<quoted>(?:[^\"]++|\"\")+)\""
    r"|`(?P<backquoted>[^`]+)`|\[(?P<bracketed>[^\]]+)\])",
    re.IGNORECASE | re.ASCII,
)


def postgres_savepoint(name: str) -> str:
    """Return a savepoint's name as PostgreSQL stores it: its first 63 bytes."""
    return name.encode()[:_POSTGRES_NAME_BYTES].decode(errors="ignore")


def _savepoint_in(statement: str, *, keeps_case: bool) -> Savepoint | None:
    """Return what a statement does to a savepoint; None if unclear. `keeps_case`: of quoted names."""
    found = _SAVEPOINT.fullmatch(statement)
    if found is None:
        return None
    groups: Mapping[str, str] = {group: text for group, text in found.groupdict().items() if text is not None}
    (step,) = (each for each in Step if each.value in groups)
    name = groups.get("quoted", "").replace('""', '"')
    if not (name and keeps_case):
        name = (name or groups.get("plain") or groups.get("backquoted") or groups["bracketed"]).lower()
    if not name.isascii() and (not keeps_case or len(name.encode()) > _POSTGRES_NAME_BYTES):
        return None
    return Savepoint(step, postgres_savepoint(name) if keeps_case else name)


# ---- the statements in a text --------------------------------------------------------------------------------------

# Backtracking must not find an earlier end for a string, so quantifiers are possessive and groups atomic; a group with
# a possessive quantifier is matched wrongly by Python 3.11.0 to 3.11.4 (CPython #106052). Two quotes inside a string
# are read as the end of one and the start of another.
_STRING: Final = r"'[^']*+'"
_ESCAPED: Final = r"'(?>(?:[^'\\]+|\\.)*)'"
_NAME: Final = _STRING.replace("'", '"')
_BACKQUOTED: Final = _STRING.replace("'", "`")
_SPACE: Final = r"[\s\ufeff]+"  # SQLite skips a byte order mark too
_REST: Final = r"(?P<open>['\"])|(?P<cut>;)|(?P<other>.)"
_REST_OF_MYSQL: Final = _REST.replace("['", "['`")

# In PostgreSQL an E'' string goes on after a line break, and a dollar quote ends with the tag with which it began
_PIECE: Final = r"'(?>(?:[^'\\]+|\\.|'')*)'"
_E_STRING: Final = rf"[eE]{_PIECE}(?>(?:(?>(?:\s|--[^\n\r]*+)*){_PIECE})*)"
_TAG: Final = r"\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*+)?\$"
_DOLLAR: Final = rf"(?P<tag>{_TAG}).*?(?P=tag)"
_REST_OF_POSTGRES: Final = _REST.replace("(?P<open>", f"(?P<open>{_TAG}|")
_WORD: Final = r"[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*+"


def _postgres(string: str) -> str:
    blank = rf"(?P<blank>{_SPACE}|--[^\n\r]*+|/\*(?>(?:[^*/]+|\*+(?!/)|/+(?!\*))*)\*/)|(?P<hidden>/\*)"
    return rf"{blank}|(?P<text>{_E_STRING}|{string}|{_NAME}|{_WORD}|{_DOLLAR})|{_REST_OF_POSTGRES}"


def _mysql(string: str, quoted: str) -> str:
    line = r"(?:#|--(?=[\x00-\x20]|\Z))[^\n]*+"
    blank = rf"(?P<blank>{_SPACE}|{line}|/\*(?!M?!).*?(?:\*/|\Z))|(?P<hidden>/\*)"
    return rf"{blank}|(?P<text>{string}|{quoted}|{_BACKQUOTED}|[\w$\x80-\U0010ffff]++)|{_REST_OF_MYSQL}"


_SQLITE: Final = (
    rf"(?P<blank>{_SPACE}|--[^\n]*+|/\*.*?(?:\*/|\Z))|(?P<text>{_STRING}|{_NAME}|{_BACKQUOTED}|\[[^\]]*+\])|{_REST}"
)

_WORDS: Final = r"(?:COMMIT|END|ABORT|ROLLBACK|PREPARE|RESET|SAVEPOINT|RELEASE)\b"
_HARMLESS_IN_MYSQL: Final = (
    r"(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES|TABLE|SHOW|EXPLAIN|DESCRIBE|DESC|CALL|DO|USE|HANDLER|SIGNAL"
    r"|RESIGNAL|GET|KILL|HELP|CHECKSUM|LOAD\s+(?:DATA|XML)|(?:CREATE(?:\s+OR\s+REPLACE)?|DROP)\s+TEMPORARY)\b"
)
_SET_IN_MYSQL: Final = (
    r"SET\s++(?!(?:STATEMENT|PASSWORD|DEFAULT)\b|[/#-]|.*(?:\bAUTOCOMMIT\b|,\s*+(?:PASSWORD\b|/\*|#|--)))"
    rf"|SET\s+STATEMENT\b(?>(?:(?!\bFOR\b)[^;'\"`/#-])*)\bFOR\s+{_HARMLESS_IN_MYSQL}"  # of MariaDB
)


@dataclass(frozen=True, eq=False, slots=True)
class Grammar:
    """The rules of one kind of database."""

    harmless: re.Pattern[str]
    """Matches the beginning of a statement that is not refused, and does nothing to a savepoint."""
    continues: re.Pattern[str]
    """Is found if another statement may follow that is not harmless."""
    readings: tuple[re.Pattern[str], ...]
    """The parts of a text, under each setting of the server that changes where a string ends."""
    refused: tuple[Refused, ...]
    keeps_case: bool = False
    ends_at_nul: bool = False
    """Whether the server gets a text up to its first NUL only."""
    first_only: bool = False
    """Whether the drivers refuse a second statement in a text."""


def _grammar(harmless: str, readings: tuple[str, ...], *refused: Refused, **more: bool) -> Grammar:
    flags = re.IGNORECASE | re.ASCII | re.DOTALL
    return Grammar(
        re.compile(rf"[\s(]*+(?:{harmless})", flags),
        re.compile(rf";[\s(]*+(?!{harmless})[^\s;]", flags),
        tuple(re.compile(reading, re.ASCII | re.DOTALL) for reading in readings),
        refused,
        **more,
    )


_EVERYWHERE: Final = (Refused.SAVEPOINT, Refused.COMMIT, Refused.ROLLBACK)
_OTHER_WORD: Final = rf"(?!{_WORDS})[A-Z]"

POSTGRES: Final = _grammar(
    _OTHER_WORD,
    (_postgres(_STRING), _postgres(_ESCAPED)),  # standard_conforming_strings: on, off
    *_EVERYWHERE,
    Refused.PREPARE,
    Refused.RESET,
    keeps_case=True,
    ends_at_nul=True,
)
MYSQL: Final = _grammar(
    f"{_HARMLESS_IN_MYSQL}|{_SET_IN_MYSQL}",
    # sql_mode: the default, ANSI_QUOTES, NO_BACKSLASH_ESCAPES
    (_mysql(_ESCAPED, _ESCAPED.replace("'", '"')), _mysql(_ESCAPED, _NAME), _mysql(_STRING, _NAME)),
    *_EVERYWHERE,
    Refused.IMPLICIT,
)
SQLITE: Final = _grammar(_OTHER_WORD, (_SQLITE,), *_EVERYWHERE, first_only=True)

GRAMMARS: Final = {"mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}
"""By SQLAlchemy dialect; for any other one use PostgreSQL's, the closest to the standard."""


def effect_of(text: str, grammar: Grammar) -> Savepoint | Refused | None:
    """Return what `text` would do to the transaction; None if nothing. Most texts need one or two expressions."""
    if grammar.harmless.match(text) and (";" not in text or not grammar.continues.search(text)):
        return None
    return _read(text, grammar)


def checked(text: str, grammar: Grammar) -> Savepoint | None:
    """Return what `text` does to a savepoint. Raises TransactionEndedInsideError if it must not be sent."""
    effect = effect_of(text, grammar)
    if isinstance(effect, Refused):
        raise effect.error(text)
    return effect


@lru_cache(maxsize=256)
def _read(text: str, grammar: Grammar) -> Savepoint | Refused | None:
    """Read the text under each setting that the server may have."""
    if grammar.ends_at_nul:
        text = text.partition("\0")[0]
    found = {_effect(statements_in(text, reading), grammar) for reading in grammar.readings}
    refused = next((each for each in Refused if each in found), None)
    return refused or (found.pop() if len(found) == 1 else Refused.SAVEPOINT)


def statements_in(text: str, reading: re.Pattern[str]) -> list[str] | None:
    """Return the statements of a text without comments; None if a comment hides what the text does."""
    statements: list[list[str]] = [[]]
    for part in reading.finditer(text):
        match part.lastgroup:
            case "hidden":
                return None
            case "cut":
                statements.append([])
            case "open":  # a string without an end: the server executes nothing of this statement
                statements.pop()
                break
            case "blank":
                statements[-1].append(" ")
            case _:
                statements[-1].append(part[0])
    return [joined for parts in statements if (joined := "".join(parts).lstrip(" (").rstrip())]


def _effect(statements: list[str] | None, grammar: Grammar) -> Savepoint | Refused | None:
    if statements is None:
        return Refused.HIDDEN
    if len(statements) == 1 or grammar.first_only:
        statements = statements[:1]
        savepoint = _savepoint_in(statements[0], keeps_case=grammar.keeps_case) if statements else None
        if savepoint is not None:
            return savepoint
    for statement in statements:
        if not grammar.harmless.match(statement):
            for row in grammar.refused:
                if row.begins.match(statement):
                    return row
    return None
