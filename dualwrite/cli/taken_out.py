"""`dualwrite recover --take-out`: stored blocks that are not published any more, printed or written to a file."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import sqlalchemy as sa

from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.refused import OWED
from dualwrite.recipes.recovery.plan import TakenOut
from dualwrite.recipes.recovery.taking_out import take_out


def block_names(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[tuple[str, int]]:
    """Return the transactional ids and the numbers of stored blocks that were given as `orders-1:3`."""
    names = []
    for each in given:
        transactional_id, _, seq = each.rpartition(":")
        if not transactional_id or not seq.isdecimal():
            raise click.BadParameter(f"{each!r} is not an id and the number of a stored block, as in orders-1:3")
        names.append((transactional_id, int(seq)))
    return names


def take_out_each(
    engine: sa.Engine, names: Sequence[tuple[str, int]], *, apply: bool, to: Path | None, schema: str | None
) -> list[TakenOut]:
    """Take blocks out, or only read them; write those taken out to `to` before the database commits."""
    return [take_out(engine, name, seq, apply=apply, keep=keeping_in(to), schema=schema) for name, seq in names]


def keeping_in(to: Path | None) -> Callable[[TakenOut], object] | None:
    """Return the function that writes a block taken out to a file; None without a file."""
    return None if to is None else lambda taken: _append(to, taken)


def _append(to: Path, taken: TakenOut) -> None:
    with to.open("a", encoding="utf-8") as file:
        for line in lines_of(taken):
            file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


def print_each(taken: Sequence[TakenOut], *, to: Path | None) -> None:
    """Print blocks taken out, or to be taken out; print records only if they were not written to a file."""
    for block in taken:
        what = "is taken out" if block.changed else "would be taken out with --apply"
        where = f"; its records are in {to}" if block.changed and to is not None else ":"
        has = f"{len(block.records)} records" if block.unreadable is None else "which cannot be read"
        name = "the records owed under" if block.seq == OWED else f"block {block.seq} of"
        click.echo(f"{name} {block.transactional_id} ({has}) {what}{where}")
        if not (block.changed and to is not None):
            for line in lines_of(block):
                click.echo(line)


def lines_of(taken: TakenOut) -> list[str]:
    """Return the records as lines of JSON; for an unreadable block, one line with its bytes."""
    block = {"transactional_id": taken.transactional_id, "seq": taken.seq, "stored_at_ms": taken.stored_at_ms}
    if taken.unreadable is not None:
        return [json.dumps(block | {"unreadable": _base64(taken.unreadable)})]
    return [json.dumps(block | _record(record)) for record in taken.records]


def document_of(taken: TakenOut) -> dict[str, Any]:
    """Return a block as `--json` prints it."""
    return {
        "transactional_id": taken.transactional_id,
        "seq": taken.seq,
        "stored_at_ms": taken.stored_at_ms,
        "changed": taken.changed,
        "records": [_record(record) for record in taken.records],
        "unreadable": _base64(taken.unreadable),
    }


def _record(record: BufferedRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "timestamp_ms": record.timestamp_ms,
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": [[name, _base64(value)] for name, value in record.headers],
        "value_text": _text(record.value),
    }


def _base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _text(content: bytes | None) -> str | None:
    """Return bytes as text, for people; None if they are no UTF-8."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None
