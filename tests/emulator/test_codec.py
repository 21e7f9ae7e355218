"""The generated builders and writers compared with kio's: the same entities, the same bytes."""

from __future__ import annotations

import io
from dataclasses import MISSING, fields, is_dataclass, make_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

import dualwrite.broker_emulator.api  # noqa: F401  # registers what is served
from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.messages.codec import NO_THROTTLE, builder, writer
from dualwrite.broker_emulator.messages.schema import schema
from dualwrite.broker_emulator.messages.schemas import response_schema
from tests.emulator.hostile.requests import without_none
from tests.support.proof_only import examples

SERVED = [
    pytest.param(
        api.key,
        version,
        id=f"{api.schema_name}-v{version}",
        marks=[] if version in (api.min_version, api.max_version) else [pytest.mark.proof],
    )
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]

TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.just("x" * 200)
BLOB = st.binary(max_size=8) | st.just(b"x" * 20_000)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(0, 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(0, 2**40).map(lambda ms: timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2**41).map(lambda ms: datetime.fromtimestamp(ms / 1000, UTC)),
    "uuid": st.none() | st.uuids(),
    "string": TEXT,
    "bytes": BLOB,
    "records": BLOB,
}


@cache
def entities(entity_type: Any) -> st.SearchStrategy[Any]:
    """Generate entities of kio's own type: every field has any valid value, or is left out if it has a default."""
    members = {member.name: values_of(member) for member in fields(entity_type)}
    optional = {name for member in fields(entity_type) if member.default is not MISSING for name in (member.name,)}
    return st.fixed_dictionaries(
        {name: values for name, values in members.items() if name not in optional},
        optional={name: values for name, values in members.items() if name in optional},
    ).map(lambda chosen: entity_type(**chosen))


def is_entity(kind: Any) -> bool:
    return is_dataclass(kind)


def values_of(member: Any) -> st.SearchStrategy[Any]:
    inner, nullable = without_none(member.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, _ = without_none(get_args(inner)[0])
    values = entities(inner) if is_entity(inner) else VALUES[member.metadata["kafka_type"]]
    if is_array:
        values = st.lists(values, max_size=3).map(tuple)
        if not is_dataclass(inner):
            values |= st.builds(lambda one: one[:1] * 150, values)
    return values | st.none() if nullable and "tag" not in member.metadata else values


def written_by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def written(entity: Any) -> bytes:
    parts: list[bytes] = []
    entity_type: Any = type(entity)
    writer(entity_type)(parts.append, entity)
    return b"".join(parts)


def rebuilt(entity: Any) -> Any:
    """Rebuild an entity, and all entities in it, with the builders."""
    if isinstance(entity, tuple):
        return tuple(map(rebuilt, entity))
    if not is_dataclass(entity):
        return entity
    values = {member.name: rebuilt(getattr(entity, member.name)) for member in fields(entity)}
    entity_type: Any = type(entity)
    return builder(entity_type)(**values)


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_bytes_are_kios(key: int, version: int) -> None:
    response_type = response_schema(key, version)

    @settings(max_examples=examples(12), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(entities(response_type))
    def check(entity: Any) -> None:
        expected = written_by_kio(entity)
        assert written(entity) == expected
        ours = rebuilt(entity)
        assert written(ours) == expected
        assert ours == entity

    check()


COORDINATOR = {
    "throttle_time": NO_THROTTLE,
    "error_code": ErrorCode.none,
    "error_message": None,
    "node_id": 1,
    "port": 2,
}


def test_null_where_the_schema_has_none_is_refused() -> None:
    made = schema(10, 2).new.response(**COORDINATOR, host=None)
    with pytest.raises(AttributeError):
        schema(10, 2).frame(1, made)


_Row = make_dataclass("_Row", [("partitions", tuple[int, ...])])
_Response = make_dataclass("_Response", [("rows", tuple[_Row, ...]), ("more", _Row | None, None)])  # type: ignore[valid-type]
