"""The proof of how the transaction in the state row ended, and the notes of it in the row itself.

The text beside the prepared state is the manifest, or says that the transaction is settled, or (with the manifest) that
it was given up with its cluster. In front of the manifest of an outbox's last batch stands a verdict, if its end was
known once and could be forgotten: the coordinator knows it until the id is next initialised, the log until compaction
or retention has removed the records.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from dualwrite.client.transactions.manifest import Manifest
from dualwrite.errors import NotProvenError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedRecord


class Verdict(StrEnum):
    """How a decided transaction ended, for good; the beginning of the text that notes it."""

    COMMITTED = "ended by a commit"
    ABORTED = "ended by an abort"


class Proof(NamedTuple):
    """The end of the transaction in the row, as far as it is known.

    `is_over`: it has ended and needs no completion; False leaves the judgement to the coordinator.
    `is_known`: the coordinator has described it as open or committed, or completes another transaction that hides its
    end. The log is read once the id has nothing left to complete: `verify`.
    """

    is_over: bool
    owed: Sequence[BufferedRecord] = ()
    is_known: bool = False
    verdict: Verdict | None = None
    """Its end, if known and the same in all partitions; that of an open one holds once it is committed."""
    not_proven: NotProvenError | None = None
    """The error to raise where the coordinator cannot judge either."""
    needs_manifest: bool = False
    """Whether an operator who compares both sides still needs the manifest in the row."""


KNOWN: Final = Proof(is_over=False, is_known=True)
TOLD: Final = Proof(is_over=False, is_known=True, verdict=Verdict.COMMITTED)
"""The coordinator has described it as open or committed."""
NOT_PROVEN: Final = Proof(is_over=False)
NO_EVIDENCE: Final = Proof(is_over=False, needs_manifest=True)
"""The log has lost the records that its manifest names, or may not be read."""
IS_OVER: Final = Proof(is_over=True)
IS_COMMITTED: Final = Proof(is_over=True, verdict=Verdict.COMMITTED)

_FORGOTTEN: Final = "forgotten "
"""Begins the text of a row whose transaction an operator has given up, because its cluster is gone for good."""

_NOTED: Final = re.compile(f"(?:(?:{_FORGOTTEN.strip()}|{'|'.join(Verdict)}) \\S+ )+")


def noted_text(row: PreparedTxnState, verdict: Verdict, text: str) -> str:
    """Return the text of a row with a verdict on its transaction in front of its manifest."""
    return f"{verdict} {row} {without_verdict(text)}"


def forgotten_text(row: PreparedTxnState, text: str) -> str:
    """Return the text of a row whose transaction is given up with its cluster.

    It keeps the manifest: if that cluster comes back before the id is used again, it is asked as before.
    """
    return text if is_forgotten(row, text) else f"{_FORGOTTEN}{row} {text}"


def is_forgotten(row: PreparedTxnState, text: str) -> bool:
    """Return whether the row's transaction was given up with its cluster, so that other clusters do not ask for it."""
    return text.startswith(f"{_FORGOTTEN}{row} ")


def verdict_in(row: PreparedTxnState, text: str) -> Verdict | None:
    """Return the verdict that the text of a row notes on its transaction; None if it notes none."""
    text = text.removeprefix(f"{_FORGOTTEN}{row} ")
    return next((verdict for verdict in Verdict if text.startswith(f"{verdict} {row} ")), None)


def without_verdict(text: str) -> str:
    """Return the text of a row without the notes in front of its manifest."""
    noted = _NOTED.match(text)
    return text if noted is None else text[noted.end() :]


_SETTLED: Final = "committed "
"""Begins the text that replaces a manifest once Kafka has confirmed the commit: nothing is left to prove."""
_UNKNOWN: Final = "?"
"""Stands for the cluster of a settled row that had no manifest."""


def settled_text(row: PreparedTxnState, text: str = "") -> str:
    """Return the text that replaces that of a row whose transaction is known to be committed on both sides.

    It keeps the cluster, because each one assigns the same pairs, and the names of the topics: an earlier transaction
    may hang there.
    """
    return " ".join((f"{_SETTLED}{row}", cluster_of(row, text) or _UNKNOWN, *topics_named(text)))


def is_settled(row: PreparedTxnState | str | None, text: str | None) -> bool:
    """Return whether the text of a row says that its transaction needs no more proof."""
    return f"{text} ".startswith(f"{_SETTLED}{row} ")


def topics_named(text: str) -> Sequence[str]:
    """Return the topics that the text of a row names; one that cannot be read names none."""
    if text.startswith(_SETTLED):
        return text.split(" ")[3:]
    try:
        manifest = Manifest.parse(without_verdict(text))
    except ValueError:
        return ()
    return () if manifest is None else sorted({part.topic for part in manifest.partitions})


def cluster_of(row: PreparedTxnState, text: str) -> str:
    """Return the id of the cluster in which the row's transaction was prepared; "" if its text does not tell."""
    if is_settled(row, text):
        return "".join(text.split(" ")[2:3]).replace(_UNKNOWN, "")
    try:
        manifest = manifest_of(row, text)
    except ValueError:
        return ""
    return "" if manifest is None else manifest.cluster_id


def is_elsewhere(row: PreparedTxnState, text: str, cluster_id: str) -> bool:
    """Return whether the row's transaction was prepared in another cluster than this one, if both are known."""
    return bool(cluster_id) and cluster_of(row, text) not in ("", cluster_id)


def manifest_of(row: PreparedTxnState, text: str) -> Manifest | None:
    """Return the manifest beside the state in a row; None if it is settled, or as `Manifest.beside`, which raises."""
    return None if text.startswith(_SETTLED) else Manifest.beside(row, without_verdict(text))
