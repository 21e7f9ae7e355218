"""Decide whether a Iceberg table is supported. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_AMBIGUOUS: Final = frozenset("%?#")
"""Characters that some readers take as a part of a path, and others as a part of a URL."""
_CODE: Final = ("write.location-provider.impl", "write.py-location-provider.impl")


@dataclass(frozen=True)
class IcebergTraits:
    """The traits that decide whether files may be added to an Iceberg table."""

    format_version: int
    location: str
    partition_fields: tuple[str, ...]
    sorted_by: tuple[str, ...]
    identifier_fields: tuple[str, ...]
    properties: Mapping[str, str]


def scheme_of(location: str) -> str | None:
    """Return the text before the path of a local file: empty or `file:...`; None if the file is elsewhere."""
    if location.startswith("/"):
        return ""
    url = urlsplit(location)
    is_here = url.scheme == "file" and url.netloc in ("", "localhost") and url.path.startswith("/")
    return location.removesuffix(url.path) if is_here and location.endswith(url.path) else None


def local_path(location: str) -> Path | None:
    """Return the local path of a path or a `file:` URL; None if it is elsewhere."""
    scheme = scheme_of(location)
    return None if scheme is None else Path(location.removeprefix(scheme))


def why_unsupported(table: IcebergTraits) -> str | None:
    """Return why files may not be added directly, as the end of a sentence; None if they may."""
    if table.format_version != 2:
        return f"has the format version {table.format_version}; only version 2 is supported"
    elsewhere = _elsewhere(table)
    if elsewhere is not None:
        return elsewhere
    for fields, what in (
        (table.partition_fields, "is partitioned by"),
        (table.sorted_by, "is sorted by"),
        (table.identifier_fields, "has the identifier fields"),
    ):
        if fields:
            return f"{what} {', '.join(fields)}, which is not supported"
    for setting in table.properties:
        if setting in _CODE or setting.startswith("encryption."):
            return f"has the property {setting}, which is not supported"
    return None


def _elsewhere(table: IcebergTraits) -> str | None:
    for location in (table.location, table.properties.get("write.metadata.path", table.location)):
        if local_path(location) is None:
            return (
                f"is in {location}. Driver and executors must have it in one directory under the same path; object "
                "stores (s3:, abfss:, gs:, hdfs:) are not supported"
            )
        if _AMBIGUOUS & set(location):
            return f"is in {location}, and libraries disagree on a path with %, ? or #"
    return None
