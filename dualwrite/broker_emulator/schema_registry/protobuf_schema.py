"""Protobuf schemas as descriptors: base64 of a `FileDescriptorProto`, as Confluent's Python serializer sends them.

Text in the .proto language is refused: reading it takes a compiler. Compatibility is decided for messages, enums, and
fields that are added, removed, renamed or change their type; fields that move into or out of a oneof are refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from dualwrite.broker_emulator.schema_registry.errors import InvalidSchemaError, UndecidedError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_BUILT_IN: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every client has, so that serializers do not register them."""

_REQUIRED: Final = 2
_LAST_NUMBER: Final = (1 << 29) - 1
_RESERVED: Final = range(19_000, 20_000)
_LONGEST_SHOWN: Final = 80
_INTERCHANGEABLE: Final = (
    frozenset((3, 4, 5, 8, 13)),  # int64, uint64, int32, bool, uint32: one kind of varint
    frozenset((17, 18)),  # sint32, sint64
    frozenset((9, 12)),  # string, bytes
    frozenset((7, 15)),  # fixed32, sfixed32
    frozenset((6, 16)),  # fixed64, sfixed64
)
"""Types with the same encoding, by their numbers in descriptor.proto."""


def read_protobuf(text: str, references: Iterable[str]) -> str:
    """Return the descriptor in its common form. `references` are the names of the referenced files.

    Raises InvalidSchemaError if the text is not a descriptor, if it imports a file that is not referenced, or if the
    package protobuf is missing.
    """
    file = parse_protobuf(text)
    known = set(references)
    missing = [name for name in file.dependency if name not in known and not name.startswith(_BUILT_IN)]
    if missing:
        raise InvalidSchemaError(f"the schema imports {missing[0]!r}, which is not among its references")
    _check_numbers(file)
    file.ClearField("source_code_info")
    file.ClearField("name")  # the reference has the name
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def incompatible(new: FileDescriptorProto, old: FileDescriptorProto) -> list[str]:
    """Return the differences that keep `new` from reading data of `old`; an empty list if it can.

    Raises UndecidedError for differences that are not decided here.
    """
    if new.package != old.package:
        return [f"PACKAGE_CHANGED: from {old.package[:80]!r} to {new.package[:80]!r}"]
    if new.syntax != old.syntax or new.edition != old.edition:
        raise UndecidedError("their syntax differs")
    read, written = dict(_messages(new.message_type)), dict(_messages(old.message_type))
    removed = [name for name in written.keys() - read.keys() if not written[name].options.map_entry]
    found = [f"MESSAGE_REMOVED: {_shown(name)}" for name in removed]
    for name in written.keys() & read.keys():
        found += _message_problems(read[name], written[name], _shown(name))
    return sorted(found)


def parse_protobuf(text: str) -> FileDescriptorProto:
    """Return the descriptor. Raises InvalidSchemaError."""
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError:
        raise InvalidSchemaError("Protobuf schemas need a package here: pip install protobuf") from None
    try:
        file: FileDescriptorProto = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError):
        raise InvalidSchemaError(
            "this registry takes a Protobuf schema as base64 of its FileDescriptorProto, as confluent-kafka's "
            "ProtobufSerializer sends it, and no text of the .proto language"
        ) from None
    if not (file.message_type or file.enum_type or file.dependency):
        raise InvalidSchemaError("the Protobuf schema defines nothing")
    return file


def _check_numbers(file: FileDescriptorProto) -> None:
    """Raise InvalidSchemaError for field numbers or oneof indexes that no compiler would produce."""
    for name, message in _messages(file.message_type):
        numbers = [each.number for each in message.field]
        if len(set(numbers)) < len(numbers):
            raise InvalidSchemaError(f"a number of a field occurs twice in the message {_shown(name)}")
        for each in message.field:
            if not 0 < each.number <= _LAST_NUMBER or each.number in _RESERVED:
                raise InvalidSchemaError(f"{_shown(name)} has a field with the number {each.number}")
            if each.HasField("oneof_index") and not 0 <= each.oneof_index < len(message.oneof_decl):
                raise InvalidSchemaError(f"{_shown(name)} has a field in a oneof that is not there: {each.oneof_index}")


_Path = tuple[str, ...]
"""The names of a message and of the messages around it, not joined: each nested message would repeat a long name."""


def _messages(messages: Iterable[DescriptorProto], around: _Path = ()) -> Iterator[tuple[_Path, DescriptorProto]]:
    for message in messages:
        name = (*around, message.name)
        yield name, message
        yield from _messages(message.nested_type, name)


def _shown(name: _Path) -> str:
    return ".".join(part[:_LONGEST_SHOWN] for part in name)


def _message_problems(new: DescriptorProto, old: DescriptorProto, name: str) -> Iterator[str]:
    read, written = {each.number: each for each in new.field}, {each.number: each for each in old.field}
    for number, field in written.items():
        _check_oneof(read.get(number), field, new, old, f"{name}.{field.name[:_LONGEST_SHOWN]}")
        if number in read:
            yield from _field_problems(read[number], field, f"{name}.{field.name[:_LONGEST_SHOWN]}")
        elif field.label == _REQUIRED:
            yield f"REQUIRED_FIELD_REMOVED: {name}.{field.name[:_LONGEST_SHOWN]}"
    for number in read.keys() - written.keys():
        if read[number].label == _REQUIRED:
            yield f"REQUIRED_FIELD_ADDED: {name}.{read[number].name[:_LONGEST_SHOWN]}"


def _field_problems(new: FieldDescriptorProto, old: FieldDescriptorProto, name: str) -> Iterator[str]:
    if new.label != old.label:
        raise UndecidedError(f"{name} is repeated, optional or required in one of them only")
    if new.type != old.type:
        if not any(new.type in group and old.type in group for group in _INTERCHANGEABLE):
            yield f"FIELD_KIND_CHANGED: {name}"
    elif new.type_name != old.type_name:
        yield f"FIELD_NAMED_TYPE_CHANGED: {name}, from {old.type_name:.80} to {new.type_name:.80}"


def _check_oneof(
    new: FieldDescriptorProto | None, old: FieldDescriptorProto, to: DescriptorProto, of: DescriptorProto, name: str
) -> None:
    """Raise UndecidedError if a field leaves or enters a oneof, or is removed from one."""
    before = _oneof(old, of)
    if before is not None if new is None else before != _oneof(new, to):
        raise UndecidedError(f"{name} moves into or out of a oneof")


def _oneof(field: FieldDescriptorProto, message: DescriptorProto) -> Any:
    """Return the name of a field's oneof. The synthetic oneof of a proto3 `optional` does not count."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return None
    return message.oneof_decl[field.oneof_index].name
