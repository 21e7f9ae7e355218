"""Determine the effect of SQL text on its transaction: end it, or set, release or roll back to savepoints.

Lets a block use SAVEPOINT as text, and refuses text that would end the transaction of a dual write, before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from dualwrite.errors import IllegalStateError, RecipeError, TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.sql.lexer import (
    MYSQL_READINGS,
    POSTGRES_READINGS,
    SQLITE_READINGS,
    Cut,
    Reading,
    cut,
)

_POSTGRES_NAME_BYTES: Final = 63
_SHOWN: Final = 200


class Effect(Enum):
    """The effect of one statement on the transaction."""

    END = auto()
    SAVEPOINT = auto()
    RELEASE = auto()
    ROLL_BACK_TO = auto()
    UNMARK = auto()
    """The statement removes the setting by which the last statement recognises the transaction."""
    UNCLEAR = auto()
    """The statement may have any of these effects."""


_REFUSED: Final = frozenset({Effect.END, Effect.UNMARK, Effect.UNCLEAR})


class Step(NamedTuple):
    """The effect of one statement that controls the transaction."""

    effect: Effect
    text: str = ""
    """The name of the savepoint, or why it is unclear."""


class TransactionControl(NamedTuple):
    """The effects of a text on the transaction, in order."""

    steps: tuple[Step, ...]
    is_alone: bool
    """Whether the text is a single statement, which the server executes completely or not at all."""

    def assert_may_be_sent(self, text: str) -> None:
        """Raise if `text` would end the transaction or may do so. Call it before the text is sent."""
        if self.steps:
            effects = {step.effect for step in self.steps}
            if effects & _REFUSED:
                raise self._refusal(_shown(text), effects)

    def _refusal(self, shown: str, effects: set[Effect]) -> RecipeError | IllegalStateError:
        reason = next((step.text for step in self.steps if step.effect is Effect.UNCLEAR), None)
        if reason is None and Effect.END not in effects:
            return IllegalStateError(
                f"{shown} was not executed, because it also resets the setting by which the end of this dual write "
                "recognises its transaction; neither database nor Kafka is changed: reset settings by their names"
            )
        if reason is None:
            return TransactionEndedInsideError(
                f"{shown} was sent inside a dual write, whose transaction only the end of the block may "
                "end; the statement was not executed, and neither database nor Kafka is changed"
            )
        return IllegalStateError(
            f"{shown} was not executed, because its effect on the transaction of this dual write is unclear: "
            f"{reason}; neither database nor Kafka is changed: send statements that control the transaction one by one"
        )

    def follow(self, records: RecordBuffer) -> None:
        """Apply the savepoint effects of the executed text to `records`."""
        for effect, name in self.steps:
            match effect:
                case Effect.SAVEPOINT:
                    records.savepoint(name)
                case Effect.RELEASE:
                    records.release_savepoint(name)
                case Effect.ROLL_BACK_TO:
                    records.roll_back_to_savepoint(name)
                case _:
                    raise AssertionError("it was refused before it was sent")

    @property
    def may_be_half_done(self) -> bool:
        """Whether it is unknown which of its savepoints exist after the text failed."""
        return bool(self.steps) and not self.is_alone


_NOTHING: Final = TransactionControl((), True)

Classify = Callable[[Sequence[str]], Step | None]


class Grammar(NamedTuple):
    """The rules to classify the text of one kind of database."""

    starts_plainly: re.Pattern[str]
    """Matches if the first statement does not control the transaction."""
    continues: re.Pattern[str]
    """Is found if a later statement may control the transaction."""
    readings: tuple[Reading, ...]
    classify: Classify
    one_statement_only: bool = False
    """Whether drivers refuse a second statement in a text."""


def control_of(text: str, grammar: Grammar) -> TransactionControl:
    """Return the effect of `text` on its transaction. Most texts need only one or two regular expressions."""
    if grammar.starts_plainly.match(text) and (";" not in text or not grammar.continues.search(text)):
        return _NOTHING
    return _read(text, grammar)


@lru_cache(maxsize=256)
def _read(text: str, grammar: Grammar) -> TransactionControl:
    """Read the text under each setting that the server may have; the results must agree."""
    cuts = [cut(text, reading) for reading in grammar.readings]
    if all(each.problem is not None for each in cuts):
        return _unclear(cuts[0].problem or "")
    found = {_control_in(each, grammar) for each in cuts if each.problem is None}
    found |= {_control_in(each, grammar) for each in cuts if each.problem is not None and _steps(each, grammar)}
    if len(found) > 1:
        return _unclear("whether a backslash ends one of its strings depends on a setting of the server")
    return found.pop()


def _control_in(parts: Cut, grammar: Grammar) -> TransactionControl:
    if parts.is_conditional and any(word.upper() in _MYSQL_WORDS for tokens in parts.statements for word in tokens):
        return _unclear("some versions of the server treat a part of it as a comment")
    steps = _steps(parts, grammar)
    return TransactionControl(steps, len(parts.statements) == 1) if steps else _NOTHING


def _steps(parts: Cut, grammar: Grammar) -> tuple[Step, ...]:
    statements = parts.statements[:1] if grammar.one_statement_only else parts.statements
    if any(_has_body(tokens) for tokens in statements) and len(statements) > 1:
        return (Step(Effect.UNCLEAR, "it defines a function whose body has statements"),)
    return tuple(step for tokens in statements if (step := grammar.classify(tokens)) is not None)


def _has_body(tokens: Sequence[str]) -> bool:
    words = [token.upper() for token in tokens]
    return words[0] == "CREATE" and ("BEGIN", "ATOMIC") in pairwise(words)


def _unclear(reason: str) -> TransactionControl:
    return TransactionControl((Step(Effect.UNCLEAR, reason),), False)


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


# -- statements ------------------------------------------------------------------------------------------------------


def _classify(tokens: Sequence[str], name_of: Callable[[str], str | None]) -> Step | None:
    """Classify a statement of standard SQL, with the variants that all of these databases share."""
    words = [token.upper() for token in tokens]
    match words:
        case ["COMMIT" | "END" | "ABORT", *_] | ["PREPARE", "TRANSACTION", *_]:
            return Step(Effect.END)
        case ["ROLLBACK", "TO", *_] | ["ROLLBACK", "WORK" | "TRANSACTION", "TO", *_]:
            return _named(Effect.ROLL_BACK_TO, tokens[words.index("TO") + 1 :], name_of)
        case ["ROLLBACK", *_]:
            return Step(Effect.END)
        case ["SAVEPOINT", *_]:
            return _named(Effect.SAVEPOINT, tokens[1:], name_of)
        case ["RELEASE", *_]:
            return _named(Effect.RELEASE, tokens[1:], name_of)
    return None


def _named(effect: Effect, rest: Sequence[str], name_of: Callable[[str], str | None]) -> Step:
    if len(rest) == 2 and rest[0].upper() == "SAVEPOINT":
        rest = rest[1:]
    name = name_of(rest[0]) if len(rest) == 1 else None
    return Step(Effect.UNCLEAR, "which savepoint it names") if name is None else Step(effect, name)


def postgres_savepoint(name: str) -> str:
    """Return a savepoint's name as PostgreSQL stores it: its first 63 bytes."""
    return name.encode()[:_POSTGRES_NAME_BYTES].decode(errors="ignore")


def _name_of_postgres(token: str) -> str | None:
    """Return the name of a token in PostgreSQL, or None if that depends on the database's encoding."""
    if token.startswith('"'):
        name = token[1:-1].replace('""', '"')
    elif not _WORD.fullmatch(token) or (not token.isascii() and token != token.lower()):
        return None
    else:
        name = token.lower()
    if not name.isascii() and len(name.encode()) > _POSTGRES_NAME_BYTES:
        return None
    return postgres_savepoint(name)


def _name_without_case(token: str) -> str | None:
    """Return the name of a token in MySQL and SQLite, or None if that depends on the collation."""
    quote = token[0]
    if quote in _QUOTES:
        token = token[1:-1].replace(quote * 2, quote)
    elif not _WORD.fullmatch(token):
        return None
    return token.lower() if token.isascii() else None


_WORD: Final = re.compile(r"[\w$]+")
_QUOTES: Final = "\"'`["


def _classify_postgres(tokens: Sequence[str]) -> Step | None:
    if tokens[0].upper() == "RESET":
        return Step(Effect.UNMARK) if [token.upper() for token in tokens[1:2]] == ["ALL"] else None
    return _classify(tokens, _name_of_postgres)


def _classify_sqlite(tokens: Sequence[str]) -> Step | None:
    return _classify(tokens, _name_without_case)


def _classify_mysql(tokens: Sequence[str]) -> Step | None:
    words = [token.upper() for token in tokens]
    match words:
        case ["SET", "STATEMENT", *_] if "FOR" in words:  # MariaDB: SET STATEMENT settings FOR statement
            return _classify_mysql(tokens[words.index("FOR") + 1 :]) if words[-1] != "FOR" else None
        case ["SET", *_]:
            return Step(Effect.END) if _commits_by_set(words) else None
        case ["CREATE", "OR", "REPLACE", "TEMPORARY", *_] | ["CREATE" | "DROP", "TEMPORARY", *_]:
            return None
        case ["LOAD", following, *_] if following != "INDEX":
            return None
        case [first, ":", *_] if _WORD.fullmatch(first):
            return Step(Effect.UNCLEAR, _COMPOUND)
    if words[0] in _COMMIT_IN_MYSQL:
        return Step(Effect.END)
    if words[0] in _COMPOUND_IN_MYSQL:
        return Step(Effect.UNCLEAR, _COMPOUND)
    return _classify(tokens, _name_without_case)


def _commits_by_set(words: Sequence[str]) -> bool:
    if words[1:2] == ["PASSWORD"] or words[1:3] == ["DEFAULT", "ROLE"]:
        return True
    settings = [word.strip("`") for word in words]
    return any(setting == "AUTOCOMMIT" and following in "=:" for setting, following in pairwise(settings))


_COMPOUND: Final = "it is a compound statement"
_COMPOUND_IN_MYSQL: Final = frozenset({"IF", "CASE", "LOOP", "WHILE", "REPEAT", "FOR"})

# Statements before which MySQL and MariaDB implicitly commit: DDL above all, but not on temporary tables.
_COMMIT_IN_MYSQL: Final = frozenset(
    (
        *("ALTER", "ANALYZE", "BACKUP", "BEGIN", "CACHE", "CHANGE", "CHECK", "CLONE", "CREATE", "DROP", "FLUSH"),
        *("GRANT", "IMPORT", "INSTALL", "LOAD", "LOCK", "OPTIMIZE", "RENAME", "REPAIR", "RESET", "REVOKE", "START"),
        *("STOP", "TRUNCATE", "UNINSTALL", "UNLOCK", "XA"),
    )
)
_CONTROL_WORDS: Final = ("COMMIT", "END", "ABORT", "ROLLBACK", "PREPARE", "SAVEPOINT", "RELEASE")
_MYSQL_WORDS: Final = _COMMIT_IN_MYSQL | _COMPOUND_IN_MYSQL | {*_CONTROL_WORDS, "AUTOCOMMIT", "PASSWORD", "STATEMENT"}


# -- the quick check --------------------------------------------------------------------------------------------------


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


def _any_of(words: Sequence[str]) -> str:
    return rf"(?:{'|'.join(words)})\b"


# A statement begins at the start or after a `;`, and comments may stand before its first word
_PLAIN_START: Final = _pattern(rf"[\s(]*+(?!{_any_of(_CONTROL_WORDS)})[A-Z]")
_CONTINUES: Final = _pattern(rf";[\s;]*+(?:{_any_of(_CONTROL_WORDS)}|--|/\*|\ufeff)")
_PLAIN_IN_MYSQL: Final = (
    *("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES", "SHOW", "EXPLAIN", "DESCRIBE", "CALL", "DO"),
)

POSTGRES: Final = Grammar(
    _pattern(rf"[\s(]*+(?!{_any_of((*_CONTROL_WORDS, 'RESET'))})[A-Z]"),
    _pattern(rf";[\s;]*+(?:{_any_of((*_CONTROL_WORDS, 'RESET'))}|--|/\*|\ufeff)"),
    POSTGRES_READINGS,
    _classify_postgres,
)
MYSQL: Final = Grammar(
    _pattern(rf"[\s(]*+{_any_of(_PLAIN_IN_MYSQL)}"),
    _pattern(rf";[\s;]*+(?!{_any_of(_PLAIN_IN_MYSQL)})\S"),
    MYSQL_READINGS,
    _classify_mysql,
)
SQLITE: Final = Grammar(_PLAIN_START, _CONTINUES, SQLITE_READINGS, _classify_sqlite, one_statement_only=True)

_GRAMMARS: Final = {"mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}


def grammar_of(dialect_name: str) -> Grammar:
    """Return the grammar of a SQLAlchemy dialect; for an unknown one PostgreSQL's, the closest to the standard."""
    return _GRAMMARS.get(dialect_name, POSTGRES)
