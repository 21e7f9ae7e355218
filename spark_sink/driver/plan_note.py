"""The generation of a query's running batch, which the planner notes for the committer of the same application.

Spark gives an abort only the results of tasks. If no task has one, the committer needs the generation of this note: it
may end no other, because another driver may have planned the batch since. A note is never of another driver, because
each application has a directory of its own, which its planner and its committer share, and Spark deletes. It is never
of a later run in this application, because a query runs once at a time, and Spark kills a committer that it no longer
waits for.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

_log = logging.getLogger("spark_sink")


def note_plan(sink_id: str, query_id: str | None, generation: int | None) -> None:
    """Note the generation that was planned for a query. A failure is only logged: the next plan cleans up instead."""
    if query_id is None or generation is None:
        return
    try:
        note = _note(sink_id)
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f"{note.name}.{os.getpid()}")
        partial.write_text(f"{generation} {query_id}")
        partial.replace(note)
    except OSError:
        _log.warning("sink %s: generation %d could not be noted", sink_id, generation, exc_info=True)


def planned_generation(sink_id: str, query_id: str | None) -> int | None:
    """Return the generation that this application has planned last for a query; None if it is not noted."""
    if query_id is None:
        return None
    try:
        generation, _, noted_for = _note(sink_id).read_text().partition(" ")
    except OSError:
        return None
    return int(generation) if noted_for == query_id else None


def _note(sink_id: str) -> Path:
    from pyspark import SparkFiles

    return Path(SparkFiles.getRootDirectory()) / f"dualwrite-generation-{sink_id}"
