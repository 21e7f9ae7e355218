"""Open the log of a table by its format, loading only the libraries of that format."""

from __future__ import annotations

from collections.abc import Callable

from spark_sink.lake.place import LakePlace
from spark_sink.lake.table_log import TableLog

OpenLog = Callable[[LakePlace, str], TableLog]
"""Opens the log of a table for a sink, given by its id."""


def open_log(place: LakePlace, sink_id: str) -> TableLog:
    """Open the log of a table for a sink. Raises SinkOptionError for a catalog that cannot be used."""
    if place.catalog is None:
        from spark_sink.lake.delta_log import DeltaLog

        return DeltaLog(place, sink_id)
    from spark_sink.lake.iceberg_log import IcebergLog

    return IcebergLog(place, sink_id)
