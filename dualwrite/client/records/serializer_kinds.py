"""How each kind of serializer is called: a callable, an object, and the unchanged serializers of other libraries.

None of those libraries has to be imported: an object of theirs exists only if the module of its class is loaded.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

from dualwrite.serializers import Headers, Serializer

Call = Callable[[str, Any, Headers], Any]
"""Takes the topic, the object and the record's headers, which it may extend."""

_CONFLUENT: Final = "confluent_kafka.serialization"
_CONFLUENT_REGISTRY: Final = "confluent_kafka.schema_registry"
_KAFKA_PYTHON: Final = "kafka.serializer.abstract"


def call_of(what: str, serializer: Serializer) -> Call:
    """Return one way to call any kind of serializer. The first argument is "key" or "value"."""
    serialize: Any = getattr(serializer, "serialize", None)
    if _is_instance(serializer, _CONFLUENT):
        return _with_context(what, serializer)
    if _is_instance(serializer, _KAFKA_PYTHON):
        return lambda topic, value, headers: serialize(topic, headers, value)  # the order of kafka-python 3
    if serialize is None:
        function: Any = serializer
        return lambda topic, value, headers: function(value)
    if _takes_no_headers(serialize):
        return lambda topic, value, headers: serialize(topic, value)
    return serialize  # type: ignore[no-any-return]


def described(what: str, serializer: Serializer, topic: str) -> str:
    """Return a message's name for the serializer of one record, with its schema registry's subject if it has one."""
    name = f"the {what} serializer"
    if not any(base.__module__.startswith(_CONFLUENT_REGISTRY) for base in type(serializer).__mro__):
        return name
    return (
        f"{name} {type(serializer).__name__} of topic {topic!r} (subject {topic}-{what}, unless its strategy differs)"
    )


def _is_instance(serializer: Serializer, module: str) -> bool:
    """Return whether this is a `Serializer` of the module; if that is not loaded, there are no objects of it."""
    known = getattr(sys.modules.get(module), "Serializer", None)
    return isinstance(known, type) and isinstance(serializer, known)


def _with_context(what: str, serializer: Any) -> Call:
    library: Any = sys.modules[_CONFLUENT]
    field = library.MessageField.KEY if what == "key" else library.MessageField.VALUE
    # The list itself, to which a schema id may be added: `header_schema_id_serializer` does that.
    return lambda topic, value, headers: serializer(value, library.SerializationContext(topic, field, headers))


def _takes_no_headers(serialize: Callable[..., Any]) -> bool:
    """Return whether it is `serialize(topic, value)`, kafka-python's signature before its version 3."""
    try:
        signature = inspect.signature(serialize)
    except (TypeError, ValueError):  # compiled, without a signature
        return False
    return not _takes(signature, 3) and _takes(signature, 2)


def _takes(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True
