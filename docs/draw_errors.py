"""Write docs/errors.md from the docstrings of the classes: `python docs/draw_errors.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dualwrite import errors

PAGE: Final = Path(__file__).with_name("errors.md")
_HEAD: Final = """# Errors

Callers distinguish errors by class, or by a base of it. Whether the block that an error left was written is told by
[`error.outcome`](dual-write.md#errors-that-leave-a-block), not by the class. Every error of a producer with a
transactional id names that id, the producer's state and what to do next. `error_code` of a `KafkaError` is Kafka's
number, or None if no broker responded. The [Spark sink has its own](spark-options.md#errors).
"""
_MORE: Final = {
    errors.TransactionHangsError: "operations.md#a-transaction-that-hangs",
    errors.AuthenticationError: "security.md",
    errors.AuthorizationError: "your-kafka.md#acls",
    errors.PreparedTransactionLost: "operations.md#when-a-prepared-transaction-is-lost",
    errors.AnotherClusterError: "operations.md#another-kafka-cluster",
    errors.TransactionDoomedError: "dual-write.md#savepoints-and-blocks-inside-blocks",
    errors.TransactionEndedInsideError: "dual-write.md#inside-the-block",
    errors.StateTableError: "guarantees.md#one-id-one-database",
    errors.DatabaseMovedError: "guarantees.md#one-id-one-database",
    errors.DatabaseWentBackError: "operations.md#a-database-that-went-back",
    errors.BoundExceededError: "guarantees.md#the-bound",
    errors.NotDurableError: "databases.md#durable-decisions",
    errors.StoredBlocksError: "dual-write.md#stored-until-it-is-back",
    errors.RecordsRefusedError: "dual-write.md#stored-until-it-is-back",
    errors.NotProvenError: "operations.md#an-outbox-that-stops",
    errors.OwedRecordsRefusedError: "guarantees.md#proof-and-repair",
    errors.StoreFullError: "pool.md#outbox",
    errors.UnsafeDatabaseError: "databases.md#refused-settings",
    errors.PartitionTakenOverError: "consume.md#why-a-zombie-cannot-write",
    errors.ConsumedLogReplacedError: "consume.md#when-the-log-has-changed",
}
"""The page that explains an error."""
_ADMIN: Final = (errors.AdminError, errors.IncompleteAnswerError)


def _row(error: type[errors.DualWriteError]) -> str:
    paragraphs = [" ".join(each.split()) for each in (inspect.getdoc(error) or "").split("\n\n")]
    remedy = "".join(each.removeprefix("Remedy: ") for each in paragraphs if each.startswith("Remedy: "))
    more = f" [More]({_MORE[error]})" if error in _MORE else ""
    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__ if base is not Exception)
    return f"| `{error.__name__}` | {bases} | {paragraphs[0]} | {remedy[:1].upper()}{remedy[1:]}{more} |\n"


def page() -> str:
    """Return the whole page."""
    known = [
        each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.DualWriteError)
    ]
    parts: dict[str, Callable[[type], bool]] = {
        "Dual writes": lambda error: issubclass(error, errors.RecipeError),
        "Administration": lambda error: issubclass(error, _ADMIN),
        "Producers, and dual writes too": lambda error: not issubclass(error, (errors.RecipeError, *_ADMIN)),
    }
    head = "| error | base | cause, and state of both sides | remedy |\n|---|---|---|---|\n"
    tables = (
        f"\n## {title}\n\n{head}{''.join(_row(each) for each in known if of(each))}" for title, of in parts.items()
    )
    return _HEAD + "".join(tables)


if __name__ == "__main__":
    PAGE.write_text(page())
