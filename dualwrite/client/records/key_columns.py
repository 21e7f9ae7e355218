"""The hashes of `dualwrite.partitioners` for a whole column of keys, by numpy, without a Python call per key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from dualwrite.partitioners import KeyPartitioner, consistent_partition, murmur2_partition

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_Hashes = npt.NDArray[np.uint32]

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)


def _crc_table() -> _Hashes:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1).astype(np.uint32)
    return table


_CRC_TABLE: Final = _crc_table()


def _positions(lengths: Ints, step: int) -> Iterator[tuple[int, Ints]]:
    """Yield each position in the keys, and the rows whose keys have `step` bytes there.

    Only few keys are long, so the later positions cost little.
    """
    rows = np.flatnonzero(lengths >= step)
    position = 0
    while len(rows):
        yield position, rows
        position += step
        rows = rows[lengths[rows] >= position + step]


def murmur2_all(offsets: Ints, data: Bytes) -> _Hashes:
    """Return `partitioners.murmur2` of each key; `offsets` has one number more than there are keys."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes: _Hashes = _SEED ^ lengths.astype(np.uint32)
    for position, rows in _positions(lengths, 4):
        at = starts[rows] + position
        k = np.zeros(len(rows), np.uint32)
        for byte in range(4):
            k |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        k *= _M
        k ^= k >> np.uint32(24)
        hashes[rows] = (hashes[rows] * _M) ^ (k * _M)
    _mix_tails(hashes, starts, lengths, data)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    return hashes ^ (hashes >> np.uint32(15))


def _mix_tails(hashes: _Hashes, starts: Ints, lengths: Ints, data: Bytes) -> None:
    whole, left = lengths & ~3, lengths & 3
    for byte in range(3):
        rows = np.flatnonzero(left > byte)
        hashes[rows] ^= data[(starts + whole)[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(left)
    hashes[rows] *= _M


def crc32_all(offsets: Ints, data: Bytes) -> _Hashes:
    """Return `zlib.crc32` of each key."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = np.full(len(starts), 0xFFFFFFFF, np.uint32)
    for position, rows in _positions(lengths, 1):
        before = hashes[rows]
        index = (before ^ data[starts[rows] + position]) & np.uint32(0xFF)
        hashes[rows] = (before >> np.uint32(8)) ^ _CRC_TABLE[index]
    return ~hashes


def _murmur2_partitions(offsets: Ints, data: Bytes, partitions: int) -> Ints:
    return (murmur2_all(offsets, data) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def _consistent_partitions(offsets: Ints, data: Bytes, partitions: int) -> Ints:
    return crc32_all(offsets, data).astype(np.int64) % partitions


def partitions_of_keys(partition_of: KeyPartitioner, keys: list[bytes], partitions: int) -> list[int]:
    """Return `partition_of` of each key."""
    offsets = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), out=offsets[1:])
    chosen: list[int] = OF_ALL_KEYS[partition_of](offsets, np.frombuffer(b"".join(keys), np.uint8), partitions).tolist()
    return chosen


OF_ALL_KEYS: Final[dict[KeyPartitioner, Callable[[Ints, Bytes, int], Ints]]] = {
    murmur2_partition: _murmur2_partitions,
    consistent_partition: _consistent_partitions,
}
"""For each partitioner of one key, the function that does the same for a column of keys."""
