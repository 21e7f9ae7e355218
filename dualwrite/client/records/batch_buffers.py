"""Memory for large batches, used again and again.

The system hands out new memory page by page, which takes several times as long as copying a batch into memory that is
there already, and the allocator gives large blocks back as soon as they are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from io import BytesIO
from typing import Final

_MOST_KEPT: Final = 8  # as many as are in flight to a broker or two
_LARGEST_KEPT_BYTES: Final = 1024 * 1024

_kept: Final[deque[BytesIO]] = deque()
"""Shared by all threads. A buffer is not in it while it is written to."""


def joined(parts: Iterable[bytes | memoryview]) -> memoryview:
    """Return the parts one after the other, in memory that is not used for anything else while there is a view of it.

    `BytesIO` refuses to be written to while there is a view of it, so none has to be given back: neither by its batch,
    nor by the transport that may be sending it.
    """
    buffer = _kept.popleft() if _kept else BytesIO()
    try:
        buffer.seek(0)
        buffer.writelines(parts)
    except BufferError:
        _kept.append(buffer)
        buffer = BytesIO()
        buffer.writelines(parts)
    end = buffer.tell()
    view = buffer.getbuffer()[:end]
    if len(_kept) < _MOST_KEPT and end <= _LARGEST_KEPT_BYTES:
        _kept.append(buffer)
    return view
