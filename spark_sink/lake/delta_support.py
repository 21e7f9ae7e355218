"""Decide whether a Delta table is supported. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

WRITER_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
    }
)
"""Features that deltalake commits to, that do not concern adding files, or that are checked where they are used."""

_COMPUTED: Final = ("delta.generationExpression", "delta.identity", "delta.invariants", "CURRENT_DEFAULT")
"""Prefixes of column metadata that a writer would have to check or compute."""


@dataclass(frozen=True)
class DeltaTraits:
    """The traits that decide whether files may be added to a Delta table."""

    metadata: Mapping[str, Mapping[str, object]]
    """The metadata of the columns, by name."""
    configuration: Mapping[str, str]
    partition_columns: tuple[str, ...]
    writer_features: frozenset[str]


def why_unsupported(table: DeltaTraits) -> str | None:
    """Return why files may not be added directly, as the end of a sentence; None if they may."""
    if table.partition_columns:
        return f"is partitioned by {', '.join(table.partition_columns)}, which is not supported"
    unknown = sorted(table.writer_features - WRITER_FEATURES)
    if unknown:
        return f"has the table feature {unknown[0]}, which is not supported"
    for setting, value in table.configuration.items():
        if setting.startswith("delta.constraints."):
            return f"has the CHECK constraint {setting.rpartition('.')[2]}, which the sink does not check"
        if setting == "delta.columnMapping.mode" and value != "none":
            return f"uses column mapping ({setting}={value}), which is not supported"
        if setting == "delta.setTransactionRetentionDuration":
            return f"has {setting}={value}, which makes it forget its batches; remove the setting"
    for column, metadata in table.metadata.items():
        if any(key.startswith(_COMPUTED) for key in metadata):
            return f"has the column {column}, which is generated, or has an invariant or a default"
    return None
