"""Write numbers as zigzag varints, a whole column at a time, and join them with other columns, by numpy and Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dualwrite.client.varints import varint

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def _zigzag(numbers: Ints) -> npt.NDArray[np.uint64]:
    zigzag: npt.NDArray[np.uint64] = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    return zigzag


def varint_sizes(numbers: Ints) -> Ints:
    """Return how many bytes each number takes as a zigzag varint."""
    return _unsigned_sizes(_zigzag(numbers))


def _unsigned_sizes(numbers: npt.NDArray[np.uint64]) -> Ints:
    sizes = np.ones(len(numbers), np.int64)
    most = int(numbers.max()) if len(numbers) else 0
    for seven in range(7, 70, 7):
        if most >> seven == 0:
            break
        sizes += numbers >= np.uint64(1 << seven)
    return sizes


def varints(fields: list[Ints]) -> Any:
    """Encode the fields of each row as zigzag varints, joined: a byte string per row, or one for all if all are equal.

    Many fields are equal in all rows: no keys, no headers, values of one length, one timestamp.
    """
    alike = [varint(int(numbers[0])) if numbers.min() == numbers.max() else None for numbers in fields]
    if None not in alike:
        return pa.scalar(b"".join(filter(None, alike)), pa.large_binary())
    rows = len(fields[0])
    columns = [_Cells(numbers) if same is None else same for numbers, same in zip(fields, alike, strict=True)]
    width = sum(len(column) if isinstance(column, bytes) else column.width for column in columns)
    cells, used = np.empty((rows, width), np.uint8), np.ones((rows, width), np.bool_)
    lengths, at = np.zeros(rows, np.int64), 0
    for column in columns:
        if isinstance(column, bytes):
            cells[:, at : at + len(column)] = np.frombuffer(column, np.uint8)
            lengths += len(column)
            at += len(column)
        else:
            column.write(cells[:, at : at + column.width], used[:, at : at + column.width])
            lengths += column.sizes
            at += column.width
    offsets = running_total(lengths)
    data = cells.ravel() if int(offsets[-1]) == cells.size else cells[used]
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class _Cells:
    """The varints of a column of numbers, each as wide as the longest of them."""

    def __init__(self, numbers: Ints) -> None:
        self._zigzag = _zigzag(numbers)
        self.sizes = _unsigned_sizes(self._zigzag)
        self.width = int(self.sizes.max())

    def write(self, cells: Bytes, used: npt.NDArray[np.bool_]) -> None:
        """Write each byte of the varints to a column of `cells`, and mark in `used` the cells that hold one."""
        rest = self._zigzag
        for byte in range(self.width):
            low = rest.astype(np.uint8)
            if byte + 1 == self.width:
                cells[:, byte] = low
            else:
                cells[:, byte] = (low & 0x7F) | ((self.sizes > byte + 1).view(np.uint8) << 7)
            if byte:
                used[:, byte] = self.sizes > byte
            rest = rest >> np.uint64(7)


def running_total(numbers: Ints) -> Ints:
    """Return the running total, starting with 0, so one element more than `numbers`."""
    total = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=total[1:])
    return total


def joined(*parts: Any) -> Any:
    """Join the byte strings of each row; a null is empty."""
    separator = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*parts, separator, null_handling="replace", null_replacement="")


def data_offsets(array: Any) -> Ints:
    """Return where each element starts in the array's data, and where the last one ends."""
    whole = np.frombuffer(array.buffers()[1], np.int64) if array.buffers()[1] is not None else np.zeros(1, np.int64)
    return whole[array.offset : array.offset + len(array) + 1]
