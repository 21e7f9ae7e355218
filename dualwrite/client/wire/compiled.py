"""Encode and decode messages by the functions that kafka-python compiles for each of them and version.

Its own `encode` and `decode` find these functions anew for each message, which takes 24 calls for a small one. They are
not public; `tests/unit/test_compiled_codec.py` fails if kafka-python changes the names that this module uses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from dualwrite.client.kafka_python import EncodeBuffer

_of_thread = threading.local()


def encode(message: Any, version: int) -> bytes:
    """Return the body of a message."""
    try:
        out = _of_thread.buffer
    except AttributeError:
        out = _of_thread.buffer = EncodeBuffer()
    out.pos = 0
    message_class: Any = type(message)
    _encoder(message_class, version)(message, out)
    return bytes(memoryview(out.buf)[: out.pos])


def decode(message_class: Any, body: memoryview, version: int) -> Any:
    """Return the message in a body. Raises kafka-python's errors for malformed bytes."""
    return _decoder(message_class, version)(body, 0)[0]


@cache
def _encoder(message_class: Any, version: int) -> Callable[[Any, Any], None]:
    flexible = message_class.flexible_version_q(version)
    compiled: Callable[[Any, Any], None] = message_class._struct.compiled_encode_into(  # noqa: SLF001
        version, compact=flexible, tagged=flexible
    )
    return compiled


@cache
def _decoder(message_class: Any, version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
    if not 0 <= version <= message_class.max_version:
        raise ValueError(f"{message_class.__name__} has no version {version}")
    flexible = message_class.flexible_version_q(version)
    compiled: Callable[[memoryview, int], tuple[Any, int]] = message_class._struct.compiled_decode_from(  # noqa: SLF001
        version, compact=flexible, tagged=flexible, data_class=message_class[None]
    )
    return compiled
