"""The message schemas of each API and version: kio's, and those that kio does not have yet.

Loaded per version at first use, since importing all of them takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map


class _Newer(NamedTuple):
    """The module and name of each type of a version that kio does not have."""

    request: str
    response: str


_OWN = f"{__package__}.schemas"

_NEWER: Final[Mapping[str, Mapping[int, _Newer]]] = {
    "api_versions": {
        5: _Newer(
            f"{_OWN}.api_versions_v5:ApiVersionsRequest", "kio.schema.api_versions.v4.response:ApiVersionsResponse"
        )
    },
    "delete_groups": {
        3: _Newer(
            "kio.schema.delete_groups.v2.request:DeleteGroupsRequest", f"{_OWN}.delete_groups_v3:DeleteGroupsResponse"
        )
    },
    "txn_offset_commit": {
        6: _Newer(
            f"{_OWN}.txn_offset_commit_v6:TxnOffsetCommitRequest",
            f"{_OWN}.txn_offset_commit_v6:TxnOffsetCommitResponse",
        )
    },
}
"""The versions that came with Kafka 4.4, after kio's last release."""


def versions_of(schema_name: str) -> tuple[int, ...]:
    """Return the versions of an API that have a schema, oldest first. Raises KeyError for an unknown API."""
    return tuple(sorted({*schema_name_map[schema_name], *_NEWER.get(schema_name, ())}))


def request_schema(key: int, version: int) -> Any:
    """Return the type of an API's requests in this version. Raises kio's UnknownEntity for an unknown version."""
    newer = _newer(key, version)
    return load_request_schema(key, version) if newer is None else resolve_name(newer.request)


def response_schema(key: int, version: int) -> Any:
    """Return the type of an API's responses in this version. Raises kio's UnknownEntity for an unknown version."""
    newer = _newer(key, version)
    return load_response_schema(key, version) if newer is None else resolve_name(newer.response)


def _newer(key: int, version: int) -> _Newer | None:
    return _NEWER.get(api_key_map.get(key, ""), {}).get(version)
