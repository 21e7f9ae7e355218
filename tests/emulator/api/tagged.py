"""Messages with unknown tagged fields, in every struct that can have them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_origin

from kio.serial._serialize import get_field_writer

from dualwrite.broker_emulator.log.record_fields import uvarint
from dualwrite.broker_emulator.messages.request_bounds import without_none

UNKNOWN_TAGS = {20: b"", 21: b"\xff" * 200, 2**31: b"from a later version"}
_NULL_STRUCT, _STRUCT = b"\xff", b"\1"


def with_unknown_tags(entity: Any, unknown: Mapping[int, bytes] = UNKNOWN_TAGS) -> bytes:
    """Return the bytes of a message with unknown tagged fields in every flexible struct."""
    return b"".join(
        [_written(member, entity, unknown) for member in fields(entity) if "tag" not in member.metadata]
        + ([_tags(entity, unknown)] if entity.__flexible__ else [])
    )


def _tags(entity: Any, unknown: Mapping[int, bytes]) -> bytes:
    tagged = {
        member.metadata["tag"]: _written(member, entity, unknown)
        for member in fields(entity)
        if "tag" in member.metadata and (member.default is MISSING or getattr(entity, member.name) != member.default)
    }
    parts = [uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted((tagged | dict(unknown)).items())]
    return uvarint(len(parts)) + b"".join(parts)


def _written(member: Any, entity: Any, unknown: Mapping[int, bytes]) -> bytes:
    value, kind = getattr(entity, member.name), without_none(member.type)
    is_tagged = "tag" in member.metadata
    if get_origin(kind) is tuple and is_dataclass(without_none(get_args(kind)[0])) and value is not None:
        count = uvarint(len(value) + 1) if entity.__flexible__ else len(value).to_bytes(4, "big")
        return count + b"".join(with_unknown_tags(item, unknown) for item in value)
    if is_dataclass(kind):
        if kind is member.type or is_tagged:
            return with_unknown_tags(value, unknown)
        return _NULL_STRUCT if value is None else _STRUCT + with_unknown_tags(value, unknown)
    buffer = io.BytesIO()
    write: Any = get_field_writer(member, entity.__flexible__, is_request_header=False, is_tag=is_tagged)
    write(buffer, value)
    return buffer.getvalue()
