"""`dualwrite recover --take-out`: stored blocks that will not be published, printed or written to a file."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Handover:
    """Hands over the records of blocks that are taken out: to a file, or else on standard output."""

    to: Path | None
    as_json: bool
    """Standard output is for one document, which comes last; the records go to standard error before it."""
    apply: bool

    def keep(self, taken: TakenOut) -> None:
        """Write the records out; called before the database commits, because they may be nowhere else then."""
        if self.to is None:
            self._echo(taken)
            return
        with self.to.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines_of(taken))
            file.flush()
            os.fsync(file.fileno())

    def tell(self, taken: TakenOut) -> None:
        """Print that a block is taken out, or would be, and then its records, unless they were written out before."""
        if self.as_json:
            return
        place = "above" if self.to is None else f"in {self.to}"
        ends = f"is taken out; its records are {place}"
        if not taken.changed:
            ends = f"may still be there: its error follows; its records are {place}, too"
        if not self.apply:
            ends = "would be taken out with --apply:"
        has = f"{len(taken.records)} records" if taken.unreadable is None else "which cannot be read"
        name = "the records owed under" if taken.seq == OWED else f"block {taken.seq} of"
        click.echo(f"{name} {taken.transactional_id} ({has}) {ends}")
        if not self.apply:
            self._echo(taken)

    def _echo(self, taken: TakenOut) -> None:
        for line in lines_of(taken):
            click.echo(line, err=self.as_json)


def take_out_each(
    engine: sa.Engine, names: Sequence[tuple[str, int]], handover: Handover, *, apply: bool, schema: str | None
) -> list[TakenOut]:
    """Take blocks out, or only read them; report each before the next, which may be refused."""
    blocks = []
    for name, seq in names:
        blocks.append(take_out(engine, name, seq, apply=apply, keep=handover.keep, schema=schema))
        handover.tell(blocks[-1])
    return blocks


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
