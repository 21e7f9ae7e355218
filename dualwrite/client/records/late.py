"""A new timestamp for a record that is published later than its topic allows, with the old one in a header.

A topic refuses timestamps that are too far from the broker's clock (`message.timestamp.before.max.ms` and
`message.timestamp.after.max.ms`, KIP-937). A record that was decided under other rules, or long before it is published,
would be refused for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from dualwrite.client.records.batches import Header

INVALID_TIMESTAMP: Final = 32

ORIGINAL_TIMESTAMP: Final = "dualwrite.original-timestamp-ms"
"""The name of the header, whose value is the old timestamp in decimal digits. It is the record's last header."""


class Stamp(NamedTuple):
    """The new headers and timestamp of a record that is published late."""

    headers: list[Header]
    timestamp_ms: int


def renewed(headers: Sequence[Header], timestamp_ms: int, now_ms: int) -> Stamp:
    """Return the stamp of a record that is published now; the header keeps the first timestamp it had."""
    own = original(headers, timestamp_ms)
    return Stamp([*own.headers, (ORIGINAL_TIMESTAMP, b"%d" % own.timestamp_ms)], now_ms)


def original(headers: Sequence[Header], timestamp_ms: int) -> Stamp:
    """Return the stamp that a record had when it was written."""
    if headers and headers[-1][0] == ORIGINAL_TIMESTAMP:
        old = headers[-1][1] or b""
        if old.isdigit():
            return Stamp(list(headers[:-1]), int(old))
    return Stamp(list(headers), timestamp_ms)
