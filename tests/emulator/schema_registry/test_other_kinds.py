"""JSON Schema and Protobuf: which changes are decided, and which are refused rather than guessed."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonschema
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.schema_registry.errors import Effort, InvalidSchemaError, UndecidedError
from dualwrite.broker_emulator.schema_registry.json_schema import JsonSchema, not_accepted, read_json_schema
from dualwrite.broker_emulator.schema_registry.protobuf_schema import incompatible, parse_protobuf, read_protobuf
from tests.support.proof_only import examples

OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
CLOSED: dict[str, Any] = {**OPEN, "additionalProperties": False}
NUMBERS: dict[str, Any] = {"type": "array", "items": {"type": "number"}}


def with_properties(schema: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {**schema, "properties": {**schema["properties"], **properties}}


ACCEPTED = [  # new, old
    (OPEN, OPEN),
    ({"type": "number"}, {"type": "integer"}),
    ({"type": ["string", "null"]}, {"type": "string"}),
    ({}, OPEN),
    (True, OPEN),
    (OPEN, False),
    (with_properties(CLOSED, b={"type": "string"}), CLOSED),
    (with_properties(OPEN, b={}), OPEN),
    ({"type": "object"}, OPEN),
    (OPEN, CLOSED),
    (OPEN, {**OPEN, "required": ["a"]}),
    (with_properties({**CLOSED, "required": ["b"]}, b={"type": "string", "default": "x"}), CLOSED),
    (NUMBERS, {"type": "array", "items": {"type": "integer"}}),
    ({"enum": [1, 2]}, {"enum": [1]}),
    ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 4}),
    ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 2}),
    ({"type": "string", "title": "new"}, {"type": "string", "title": "old"}),
    ({"type": "integer", "multipleOf": 2, "minimum": 1}, {"type": "integer", "multipleOf": 2, "minimum": 2}),
    *(
        ({**schema, "title": "new"}, schema)
        for schema in (
            {"properties": {"next": {"$ref": "#"}, "id": {"type": "string"}}},
            {
                "$id": "http://a/",
                "$defs": {"s": {}},
                "properties": {"x": {"$ref": "#/$defs/s"}, "y": {"$ref": "other"}},
            },
        )
    ),
]
NOT_ACCEPTED = [
    ({"type": "integer"}, {"type": "number"}, "TYPE_NARROWED at #: number"),
    ({"type": "string"}, {}, "TYPE_NARROWED"),
    (False, {"type": "string"}, "TYPE_NARROWED"),
    (with_properties(OPEN, b={"type": "string"}), OPEN, "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL at #/properties/b"),
    ({"type": "object", "additionalProperties": False}, CLOSED, "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
    (CLOSED, OPEN, "ADDITIONAL_PROPERTIES_NARROWED"),
    ({**OPEN, "required": ["a"]}, OPEN, "REQUIRED_ATTRIBUTE_ADDED at #: a"),
    (with_properties(OPEN, a={"type": "integer"}), OPEN, "TYPE_NARROWED at #/properties/a"),
    ({"type": "array", "items": {"type": "integer"}}, NUMBERS, "TYPE_NARROWED at #/items"),
    ({"enum": [1]}, {"enum": [1, 2]}, "ENUM_ARRAY_NARROWED"),
    ({"enum": [1]}, {}, "ENUM_ARRAY_NARROWED"),
    ({"enum": [1]}, {"enum": [True]}, "ENUM_ARRAY_NARROWED"),
    ({"properties": {"x": {"enum": [False, 2]}}}, {"properties": {"x": {"enum": [0, 2]}}}, "ENUM_ARRAY_NARROWED"),
    ({"type": "string", "maxLength": 4}, {"type": "string"}, "maxLength at #: 4 accepts less"),
    ({"type": "integer", "minimum": 2}, {"type": "integer", "minimum": 1}, "minimum at #: 2 accepts less"),
]
UNDECIDED = [
    ({"anyOf": [{"type": "string"}]}, {"type": "string"}),
    ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}),
    ({"$ref": "#/definitions/a", "definitions": {"a": {}}}, {"$ref": "#/definitions/a", "definitions": {"a": True}}),
    ({**OPEN, "patternProperties": {"a": {}}}, {**CLOSED, "patternProperties": {"a": {}}}),
    ({"type": "array", "items": [{}]}, {"type": "array", "items": [{}, {}]}),
    ({"type": "nothing"}, {"type": "string"}),
    ({"type": "string", "maxLength": "x"}, {"type": "string"}),
    ({"const": 1}, {"const": True}),
    *(
        ({**schema, "title": "new"}, {**schema, "title": "old"})
        for schema in (
            {"properties": {"x": {"$dynamicRef": "#n"}}},
            {"properties": {"x": {"$ref": "#/examples/0"}}},
            {"$defs": {"s": {"$id": "http://a/s"}}, "properties": {"x": {"$ref": "#/$defs/s"}}},
        )
    ),
    ({"$id": "http://b/", "items": {"$ref": "s"}}, {"$id": "http://a/", "items": {"$ref": "s"}}),
]


def problems(new: Any, old: Any) -> list[str]:
    return not_accepted(JsonSchema.parsed(json.dumps(new)), JsonSchema.parsed(json.dumps(old)), Effort())


@pytest.mark.parametrize(("new", "old"), ACCEPTED)
def test_accepted(new: Any, old: Any) -> None:
    assert problems(new, old) == []


@pytest.mark.parametrize(("new", "old", "problem"), NOT_ACCEPTED)
def test_not_accepted(new: Any, old: Any, problem: str) -> None:
    assert problem in problems(new, old)[0]


@pytest.mark.parametrize(("new", "old"), UNDECIDED)
def test_undecided(new: Any, old: Any) -> None:
    with pytest.raises(UndecidedError, match=r"does not decide .* Nothing was registered. Set the subject's compat"):
        problems(new, old)


SCALARS = st.sampled_from(["string", "integer", "number", "null", "boolean"])
SCHEMAS = st.recursive(
    st.one_of(
        st.booleans(),
        st.builds(lambda types: {"type": types}, st.lists(SCALARS, min_size=1, max_size=2, unique=True)),
        st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from([1, "a", None]), min_size=1, unique=True)),
        st.builds(lambda low: {"type": "integer", "minimum": low}, st.integers(0, 2)),
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(
            lambda properties, required, further: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": further,
            },
            st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            st.lists(st.sampled_from("ab"), unique=True, max_size=1),
            st.one_of(st.booleans(), inner),
        ),
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    st.sampled_from([0, 1, 1.5, "a", None, True]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=2)),
    max_leaves=4,
)


@settings(max_examples=examples(300), deadline=None)
@given(new=SCHEMAS, old=SCHEMAS, value=VALUES)
def test_compatible_schemas_are_accepted_by_jsonschema(new: Any, old: Any, value: Any) -> None:
    if not problems(new, old) and jsonschema.Draft202012Validator(old).is_valid(value):
        assert jsonschema.Draft202012Validator(new).is_valid(value)


@pytest.mark.parametrize("text", ["[]", "1", '"a"', "{", "[" * 100_000, '{"maximum": 1e999}', '{"maximum": -1e999}'])
def test_invalid_json_schemas_are_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        read_json_schema(text)


# ---- Protobuf ---------------------------------------------------------------------------------------------------

OPTIONAL = FieldDescriptorProto.LABEL_OPTIONAL
REQUIRED = FieldDescriptorProto.LABEL_REQUIRED
INT32, INT64, STRING, MESSAGE = (
    FieldDescriptorProto.TYPE_INT32,
    FieldDescriptorProto.TYPE_INT64,
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_MESSAGE,
)


def field(name: str, number: int, type_: Any = INT32, **more: Any) -> FieldDescriptorProto:
    return FieldDescriptorProto(name=name, number=number, type=type_, **{"label": OPTIONAL, **more})


def encoded(*fields: FieldDescriptorProto, package: str = "p", more: tuple[str, ...] = (), **message: Any) -> str:
    file = FileDescriptorProto(name="f.proto", package=package)
    file.message_type.add(name="M", field=fields, **message)
    for name in more:
        file.message_type.add(name=name)
    return base64.b64encode(file.SerializeToString()).decode()


ONEOF: dict[str, Any] = {"oneof_decl": [{"name": "o"}]}
A = field("a", 1)

PROTOBUF_COMPATIBLE = [  # reader, writer
    (encoded(A), encoded(A)),
    (encoded(A, field("b", 2)), encoded(A)),
    (encoded(A), encoded(A, field("b", 2))),
    (encoded(field("other", 1)), encoded(A)),
    (encoded(field("a", 1, INT64)), encoded(A)),
    (encoded(A, more=("N",)), encoded(A)),
]
PROTOBUF_INCOMPATIBLE = [
    (encoded(A), encoded(A, more=("N",)), "MESSAGE_REMOVED: N"),
    (encoded(A, package="q"), encoded(A), "PACKAGE_CHANGED"),
    (encoded(field("a", 1, STRING)), encoded(A), "FIELD_KIND_CHANGED: M.a"),
    (encoded(A, field("b", 2, label=REQUIRED)), encoded(A), "REQUIRED_FIELD_ADDED: M.b"),
    (encoded(A), encoded(A, field("b", 2, label=REQUIRED)), "REQUIRED_FIELD_REMOVED: M.b"),
    (
        encoded(field("a", 1, MESSAGE, type_name=".p.N")),
        encoded(field("a", 1, MESSAGE, type_name=".p.O")),
        "FIELD_NAMED_TYPE_CHANGED: M.a",
    ),
]
PROTOBUF_UNDECIDED = [
    (encoded(field("a", 1, oneof_index=0), **ONEOF), encoded(A)),
    (encoded(A), encoded(field("a", 1, oneof_index=0), **ONEOF)),
    (encoded(), encoded(field("a", 1, oneof_index=0), **ONEOF)),
    (encoded(field("a", 1, label=FieldDescriptorProto.LABEL_REPEATED)), encoded(A)),
]


@pytest.mark.parametrize(("reader", "writer"), PROTOBUF_COMPATIBLE)
def test_compatible_descriptors(reader: str, writer: str) -> None:
    assert incompatible(parse_protobuf(reader), parse_protobuf(writer)) == []


@pytest.mark.parametrize(("reader", "writer", "problem"), PROTOBUF_INCOMPATIBLE)
def test_incompatible_descriptors(reader: str, writer: str, problem: str) -> None:
    assert problem in incompatible(parse_protobuf(reader), parse_protobuf(writer))[0]


@pytest.mark.parametrize(("reader", "writer"), PROTOBUF_UNDECIDED)
def test_undecided_descriptors(reader: str, writer: str) -> None:
    with pytest.raises(UndecidedError, match=r"moves into or out of a oneof|repeated, optional or required"):
        incompatible(parse_protobuf(reader), parse_protobuf(writer))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('syntax = "proto3"; message M {}', "base64 of its FileDescriptorProto"),
        ("ÿ", "base64 of its FileDescriptorProto"),
        (base64.b64encode(b"\xff\xff").decode(), "base64 of its FileDescriptorProto"),
        (base64.b64encode(FileDescriptorProto(package="p").SerializeToString()).decode(), "defines nothing"),
        (
            base64.b64encode(
                FileDescriptorProto(dependency=["x.proto"], message_type=[DescriptorProto()]).SerializeToString()
            ).decode(),
            "imports 'x.proto', which is not among its references",
        ),
    ],
)
def test_invalid_protobuf_schemas_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchemaError, match=problem):
        read_protobuf(text, [])


@pytest.mark.parametrize(
    "given",
    [
        encoded(A, field("b", 1)),
        encoded(field("a", 0)),
        encoded(field("a", 19_500)),
        encoded(field("a", 2**29)),
        encoded(field("a", 1, oneof_index=1), **ONEOF),
        encoded(field("a", 1, oneof_index=-1), **ONEOF),
    ],
)
def test_an_invalid_descriptor_is_refused(given: str) -> None:
    with pytest.raises(InvalidSchemaError, match=r"^(M has a field|a number of a field occurs twice in the message M)"):
        read_protobuf(given, ())
