"""Varints, as Kafka writes them."""

from __future__ import annotations


def unsigned_varint(number: int) -> bytes:
    """Return a number that is not negative as an unsigned varint, as flexible versions write lengths (KIP-482)."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def varint(number: int) -> bytes:
    """Return a number of up to 64 bits as a zigzag varint, as records write their fields."""
    return unsigned_varint((number << 1) ^ (number >> 63))
