"""Decide whether data of one Avro schema can be read with another: the rules of schema resolution (specification 1.12).

The rules are those of Avro's Java library, which Confluent's registry uses: names are compared without their
namespaces, and only the reader's aliases count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualwrite.broker_emulator.schema_registry.avro_schema import AvroField, AvroType
from dualwrite.broker_emulator.schema_registry.errors import Effort
from dualwrite.broker_emulator.schema_registry.json_schema import step

_PROMOTED: Final[Mapping[str, frozenset[str]]] = {  # by the reader's type
    "long": frozenset(("int",)),
    "float": frozenset(("int", "long")),
    "double": frozenset(("int", "long", "float")),
    "bytes": frozenset(("string",)),
    "string": frozenset(("bytes",)),
}

_Pair = tuple[int, int]


def unreadable(reader: AvroType, writer: AvroType, effort: Effort) -> list[str]:
    """Return the differences that keep `reader` from reading data of `writer`; an empty list if it can.

    Raises RegistryError if the schemas are too large to compare.
    """
    comparison = _Comparison(effort)
    while True:
        comparison.begin()
        problems = comparison.problems(reader, writer, "")
        if not comparison.refuted:
            return problems


class _Comparison:
    """One comparison. Recursive types are assumed to be readable while they are being compared.

    When an assumption turns out wrong, the comparison starts again with that pair known to be unreadable.
    """

    def __init__(self, effort: Effort) -> None:
        self._unreadable: set[_Pair] = set()
        self._effort = effort
        self.begin()

    def begin(self) -> None:
        self._readable: set[_Pair] = set()
        self._open: set[_Pair] = set()
        self._assumed: set[_Pair] = set()
        self.refuted = False

    def problems(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        self._effort.spend()
        pair = id(reader), id(writer)
        if pair in self._readable:
            return []
        if pair in self._open:
            self._assumed.add(pair)
            return ["a type that contains itself cannot be read"] if pair in self._unreadable else []
        self._open.add(pair)
        problems = self._compared(reader, writer, path)
        self._open.discard(pair)
        if not problems:
            self._readable.add(pair)
        elif pair in self._assumed and pair not in self._unreadable:
            self.refuted = True
            self._unreadable.add(pair)
        return problems

    def _compared(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        if writer.kind == "union":
            return [
                problem
                for index, branch in enumerate(writer.branches)
                for problem in self.problems(reader, branch, step(path, str(index)))
            ]
        if reader.kind == "union":
            return self._read_by_union(reader, writer, path)
        if reader.kind != writer.kind:
            if writer.kind in _PROMOTED.get(reader.kind, ()):
                return []
            return [f"TYPE_MISMATCH at {path or '/'}: {writer.name:.80} cannot be read as {reader.name:.80}"]
        match reader.kind:
            case "array" | "map":
                assert reader.items is not None
                assert writer.items is not None
                where = step(path, "items" if reader.kind == "array" else "values")
                return self.problems(reader.items, writer.items, where)
            case "record" | "enum" | "fixed":
                return self._named(reader, writer, path)
        return []

    def _read_by_union(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        if any(not self.problems(branch, writer, path) for branch in reader.branches):
            return []
        return [f"MISSING_UNION_BRANCH at {path or '/'}: no branch of the reader's union can read {writer.name:.80}"]

    def _named(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        if reader.name != writer.name and writer.full_name not in reader.aliases:
            return [f"NAME_MISMATCH at {path or '/'}: {writer.full_name:.80} cannot be read as {reader.full_name:.80}"]
        if reader.kind == "fixed" and reader.size != writer.size:
            return [f"FIXED_SIZE_MISMATCH at {path or '/'}: {writer.size} bytes cannot be read as {reader.size}"]
        if reader.kind == "enum" and not reader.has_default:
            missing = sorted(writer.symbols - reader.symbols)
            return (
                [f"MISSING_ENUM_SYMBOLS at {path or '/'}: the reader does not know {', '.join(missing[:10]):.200}"]
                if missing
                else []
            )
        written = {each.name: each for each in writer.fields}
        return [problem for each in reader.fields for problem in self._field(each, written, path)]

    def _field(self, read: AvroField, written: Mapping[str, AvroField], path: str) -> list[str]:
        found = written.get(read.name) or next(
            (written[name] for name in sorted(read.aliases) if name in written), None
        )
        where = step(path, "fields", read.name)
        if found is not None:
            return self.problems(read.type, found.type, where)
        if read.has_default:
            return []
        return [f"READER_FIELD_MISSING_DEFAULT_VALUE at {where}: the writer has no such field, and it has no default"]
