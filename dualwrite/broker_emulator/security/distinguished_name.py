"""The subject of a certificate as Java writes it, which is the name that Kafka gives to its holder.

RFC 2253: the parts from last to first, joined by commas, with keywords for nine kinds of attributes and the number for
all others, whose values are then hexadecimal. OpenSSL and Python have other forms, none of which an ACL would know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_SEQUENCE, _VERSION = 0x30, 0xA0
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "utf-8",  # PrintableString
    0x14: "utf-8",  # T61String
    0x16: "utf-8",  # IA5String
    0x1B: "utf-8",  # GeneralString
    0x1C: "utf-8",  # UniversalString
    0x1E: "utf-8",  # BMPString
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SPACE: Final = " \r"


class _Element(NamedTuple):
    """One element of DER."""

    tag: int
    content: bytes
    encoded: bytes


def subject_of(certificate: bytes) -> str:
    """The subject's distinguished name of a certificate in DER. Raises ValueError or IndexError for anything else."""
    (outer,) = _elements(certificate)
    to_be_signed, *_ = _elements(outer.content)
    fields = [element for element in _elements(to_be_signed.content) if element.tag != _VERSION]
    _serial, _algorithm, _issuer, _validity, subject, *_ = fields
    return distinguished_name(subject.encoded)


def distinguished_name(name: bytes) -> str:
    """A Name in DER, in RFC 2253's form."""
    (sequence,) = _elements(name)
    parts = ["+".join(map(_attribute, _elements(part.content))) for part in _elements(sequence.content)]
    return ",".join(reversed(parts))


def _attribute(element: _Element) -> str:
    kind, value = _elements(element.content)
    number = _object_identifier(kind.content)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _ENCODINGS:
        return f"{keyword or number}=#{value.encoded.hex()}"
    return f"{keyword}={_escaped(value.content.decode(_ENCODINGS[value.tag], 'replace'))}"


def _escaped(text: str) -> str:
    first = len(text) - len(text.lstrip(_SPACE))
    last = len(text.rstrip(_SPACE))
    return "".join(
        "\\" + character if character in _ESCAPED or not first <= place < last else character
        for place, character in enumerate(text)
    ).replace("\0", "\\00")


def _object_identifier(content: bytes) -> str:
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes) -> Iterator[_Element]:
    position = 0
    while position < len(data):
        begin, tag, length = position, data[position], data[position + 1]
        position += 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size])
            position += size
        end = position + length
        if end > len(data):
            raise ValueError("an element of DER ends behind what holds it")
        yield _Element(tag, data[position:end], data[begin:end])
        position = end
