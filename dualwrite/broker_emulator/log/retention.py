"""Which segments are too old or too much. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.segment import NO_TIMESTAMP, Segment


def retained_from(segments: Sequence[Segment], config: LogConfig, now_ms: int, limit_offset: int) -> int:
    """The offset from which the records of a log are kept; `segments` are all of it, the newest last.

    Segments go as a whole and in their order, each while it is older than `retention.ms` by its newest record, or
    while the rest alone has `retention.bytes`; none that reaches beyond `limit_offset`. By age the newest goes too.
    """
    size = sum(segment.size_bytes for segment in segments)
    start = segments[0].base_offset
    for segment in segments:
        is_newest = segment is segments[-1]
        too_much = not is_newest and 0 <= config.retention_bytes <= size - segment.size_bytes
        if (
            segment.next_offset > limit_offset
            or not segment.size_bytes
            or not (_is_old(segment, config, now_ms) or too_much)
        ):
            break
        size -= segment.size_bytes
        start = segment.next_offset
    return start


def _is_old(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether all records are older than allowed; one without a timestamp never is."""
    if config.retention_ms < 0 or segment.max_timestamp == NO_TIMESTAMP:
        return False
    return segment.max_timestamp < now_ms - config.retention_ms
