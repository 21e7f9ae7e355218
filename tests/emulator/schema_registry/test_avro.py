"""Avro schemas: validity, canonical form, and compatibility between readers and writers."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse as parse_with_avro
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.schema_registry import avro_schema, errors
from dualwrite.broker_emulator.schema_registry.avro_resolution import unreadable
from dualwrite.broker_emulator.schema_registry.avro_schema import read_avro
from dualwrite.broker_emulator.schema_registry.errors import (
    TOO_LARGE,
    Effort,
    InvalidSchemaError,
    RegistryError,
)
from tests.support.proof_only import examples


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def text(schema: Any) -> str:
    return json.dumps(schema)


LIST = record(field("next", ["null", "R"]), field("a", "int"))
LONG_LIST = record(field("next", ["null", "R"]), field("a", "long"))
TEXT_LIST = record(field("next", ["null", "R"]), field("a", "string"))

READABLE = [  # reader, writer
    *((each, each) for each in ("null", "int", "string", {"type": "array", "items": "int"}, LIST)),
    *(("long", "int"), ("float", "int"), ("float", "long"), ("double", "int"), ("double", "long"), ("double", "float")),
    *(("bytes", "string"), ("string", "bytes")),
    ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}),
    (record(), record(field("a", "int"))),
    (record(field("a", "int", default=1)), record()),
    (record(field("b", "int", aliases=["a"])), record(field("a", "int"))),
    (record(name="Q", aliases=["R"]), record()),
    (record(name="Q", namespace="x", aliases=["y.R"]), record(namespace="y")),
    (record(namespace="y"), record(namespace="x")),
    (enum("a", "b"), enum("a")),
    (enum("a", default="a"), enum("a", "b")),
    (fixed(4), fixed(4)),
    (["int", "string"], "int"),
    (["null", "long"], ["null", "int"]),
    ("long", ["int", "long"]),
    (["null", record(field("a", "long"))], record(field("a", "int"))),
    (LONG_LIST, LIST),
    ({"type": "int", "logicalType": "date"}, "int"),
]
UNREADABLE = [
    *(("int", "long", "TYPE_MISMATCH"), ("int", "string", "TYPE_MISMATCH"), ("float", "double", "TYPE_MISMATCH")),
    *(("null", "int", "TYPE_MISMATCH"), (record(), "int", "TYPE_MISMATCH")),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "TYPE_MISMATCH at /items"),
    (record(field("a", "int")), record(), "READER_FIELD_MISSING_DEFAULT_VALUE at /fields/a"),
    (record(field("b", "int")), record(field("a", "int", aliases=["b"])), "READER_FIELD_MISSING_DEFAULT_VALUE"),
    (record(name="Q"), record(), "NAME_MISMATCH"),
    (record(), record(name="Q", aliases=["R"]), "NAME_MISMATCH"),
    (enum("a"), enum("a", "b"), "MISSING_ENUM_SYMBOLS at /: the reader does not know b"),
    (fixed(4), fixed(5), "FIXED_SIZE_MISMATCH"),
    (["null", "string"], "int", "MISSING_UNION_BRANCH"),
    ("int", ["null", "int"], "TYPE_MISMATCH at /0"),
    (["null", "int"], ["null", "long"], "MISSING_UNION_BRANCH at /1"),
    (TEXT_LIST, LIST, "TYPE_MISMATCH at /fields/a"),
]


def problems(reader: Any, writer: Any) -> list[str]:
    return unreadable(read_avro(text(reader)).root, read_avro(text(writer)).root, Effort())


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_readable(reader: Any, writer: Any) -> None:
    assert problems(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer", "problem"), UNREADABLE)
def test_unreadable(reader: Any, writer: Any, problem: str) -> None:
    assert any(problem in each for each in problems(reader, writer))


def test_an_assumption_about_a_type_in_itself_is_taken_back() -> None:
    """While R is compared with R, R is assumed to be readable; the union of the field finds out otherwise."""
    deep = record(
        field("other", record(field("back", ["null", "R"]), name="O")),
        field("again", "O"),
        field("a", "int"),
    )
    changed = json.loads(text(deep).replace('"a", "type": "int"', '"a", "type": "string"'))
    found = problems(changed, deep)
    assert any("/fields/a" in each for each in found)
    assert any("MISSING_UNION_BRANCH at /fields/other/fields/back/1" in each for each in found)


PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
DEFAULTS = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 1.5,
    "double": 2.5,
    "bytes": "b",
    "string": "s",
}


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> Any:
    kinds = ["primitive", "enum", "fixed"] + (["array", "map", "union", "record"] if depth else [])
    match draw(st.sampled_from(kinds)):
        case "enum":
            symbols = draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True))
            default = {"default": symbols[0]} if draw(st.booleans()) else {}
            return {"type": "enum", "name": "E", "symbols": symbols, **default}
        case "fixed":
            return {"type": "fixed", "name": "F", "size": draw(st.integers(1, 2))}
        case "array":
            return {"type": "array", "items": draw(types(depth - 1))}
        case "map":
            return {"type": "map", "values": draw(types(depth - 1))}
        case "union":
            return draw(st.lists(PRIMITIVES, min_size=1, max_size=3, unique=True))
        case "record":
            names = draw(st.lists(st.sampled_from("xyz"), max_size=2, unique=True))
            return record(*(draw(fields(name, depth - 1)) for name in names), name=f"R{depth}")
    return draw(PRIMITIVES)


@st.composite
def fields(draw: st.DrawFn, name: str, depth: int) -> Any:
    type_ = draw(types(depth))
    has_default = isinstance(type_, str) and draw(st.booleans())
    alias = draw(st.sampled_from([None, *"xyz"]))
    return {
        **field(name, type_),
        **({"default": DEFAULTS[type_]} if has_default else {}),
        **({"aliases": [alias]} if alias not in (None, name) else {}),
    }


def is_one(schema: Any) -> bool:
    try:
        read_avro(text(schema))
    except InvalidSchemaError:  # a name twice
        return False
    return True


SCHEMAS = types().filter(is_one)


@settings(max_examples=examples(150), deadline=None)
@given(reader=SCHEMAS, writer=SCHEMAS, data=st.data())
def test_compatible_schemas_are_read_by_fastavro(reader: Any, writer: Any, data: st.DataObject) -> None:
    if problems(reader, writer):
        return
    value = data.draw(values(writer))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(text(writer))), value)
    written.seek(0)
    fastavro.schemaless_reader(
        written, fastavro.parse_schema(json.loads(text(writer))), fastavro.parse_schema(json.loads(text(reader)))
    )


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([values(branch) for branch in schema])
    if isinstance(schema, str):
        return {
            "null": st.none(),
            "boolean": st.booleans(),
            "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1),
            "float": st.floats(width=32, allow_nan=False),
            "double": st.floats(allow_nan=False),
            "bytes": st.text("ab").map(str.encode),  # bytes that are read as a string must be UTF-8
            "string": st.text(),
        }[schema]
    match schema["type"]:
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "array":
            return st.lists(values(schema["items"]), max_size=2)
        case "map":
            return st.dictionaries(st.text(max_size=2), values(schema["values"]), max_size=2)
    return st.fixed_dictionaries({each["name"]: values(each["type"]) for each in schema["fields"]})


@settings(max_examples=examples(150), deadline=None)
@given(reader=SCHEMAS, writer=SCHEMAS)
def test_the_rules_are_those_of_avros_own_checker(reader: Any, writer: Any) -> None:
    """Apache Avro's Python library has the rules of its Java library."""
    checker = ReaderWriterCompatibilityChecker()
    theirs = checker.get_compatibility(parse_with_avro(text(reader)), parse_with_avro(text(writer)))
    assert (not problems(reader, writer)) == (theirs.compatibility is SchemaCompatibilityType.compatible)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ('{"type": "record"', "not JSON"),
        ("1", "a type is a name"),
        ('"Unknown"', "there is no type 'Unknown'"),
        (text({"type": 5}), "without a type"),
        (text({"name": "x"}), "without a type"),
        (text(record(name="1")), "is not a name"),
        (text({"type": "record", "name": "R"}), "must be a list of objects"),
        (text(record(field("a", "int"), field("a", "int"))), "a occurs twice"),
        (text(record({"name": "a"})), "R.a has no type"),
        (text(record(field("a", "int", default="x"))), "the default of R.a is not a value"),
        (text(record(field("a", ["null", "int"], default="x"))), "the default of R.a is not a value"),
        (text(record(field("a", record(field("b", "int"), name="Q"), default={}))), "the default of R.a"),
        (text(record(field("a", fixed(2)), field("b", fixed(2)))), "F is defined twice"),
        (text(enum("a", "a")), "a occurs twice"),
        (text(enum("a", default="b")), "the default of E"),
        (text(fixed(-1)), "the size of F"),
        (text(["int", "int"]), "a union has int twice"),
        (text(["int", ["null"]]), "a union directly inside"),
        (text({"type": "array"}), "array needs items"),
        (text({"type": "record", "name": "int", "fields": []}), "the name of a primitive"),
        ('{"type":"array","items":' * 90 + '"int"' + "}" * 90, "more than 64 levels"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_invalid_avro_schemas_are_refused(schema: str, problem: str) -> None:
    with pytest.raises(InvalidSchemaError, match=problem):
        read_avro(schema)


def test_the_common_form() -> None:
    written = """{"fields": [{"type": {"type": "string"}, "name": "a"}, {"name": "b", "default": null,
        "type": ["null", "y.T", {"type": "int", "logicalType": "date"}]}], "namespace": "x", "name": "R",
        "type": "record", "doc": "d", "aliases": ["Old"]}"""
    t = '{"type": "enum", "name": "y.T", "symbols": ["s"]}'
    assert read_avro(written, [t]).text == (
        '{"type":"record","name":"R","namespace":"x","doc":"d","fields":[{"name":"a","type":"string"},'
        '{"name":"b","type":["null","y.T",{"type":"int","logicalType":"date"}],"default":null}],"aliases":["Old"]}'
    )
    assert read_avro("int").text == '"int"'
    assert read_avro('{"type": {"type": "int"}}').text == '"int"'


@pytest.mark.parametrize("name", ["", "1a", "a b", "a-b", "$a", "a\n", "a.", "a.1b", "a..", "int", "string"])
def test_names_that_avros_java_library_refuses(name: str) -> None:
    """As of Java's 1.12.1, as the name of each kind of type; none of them becomes one by a namespace, but int."""
    for kind in ({"type": "record", "fields": []}, {"type": "fixed", "size": 1}, {"type": "enum", "symbols": ["A"]}):
        with pytest.raises(InvalidSchemaError):
            read_avro(text({"name": name, **kind}))
    in_namespace = text({"type": "record", "name": name, "namespace": "s", "fields": []})
    if name in ("int", "string"):
        assert read_avro(in_namespace).root.full_name == f"s.{name}"
    else:
        with pytest.raises(InvalidSchemaError):
            read_avro(in_namespace)


@pytest.mark.parametrize("schema", [reader for reader, _ in READABLE])
def test_the_common_form_is_a_fixed_point_that_says_the_same(schema: Any) -> None:
    form = read_avro(text(schema)).text
    assert read_avro(form).text == form
    assert problems(json.loads(form), schema) == []
    assert problems(schema, json.loads(form)) == []


def test_a_schema_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "MAX_OF_PAIR", 2_000)
    many = [record(name=f"R{number}") for number in range(100)]
    with pytest.raises(RegistryError, match="more than 2000 types") as caught:
        problems(many, [record(name=f"Q{number}") for number in range(100)])
    assert caught.value.code == TOO_LARGE
    monkeypatch.setattr(avro_schema, "MAX_DEFAULT_VALUES", 2_000)
    with pytest.raises(RegistryError, match="the defaults are too large"):
        last = [record(field(f"a{number}", "int"), name=f"R{number}") for number in range(100)]
        read_avro(text(record(field("a", {"type": "array", "items": last}, default=[{"a99": 1}] * 100))))
