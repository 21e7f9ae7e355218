"""The identity of a client: its principal, and how it is read from a certificate (KIP-371)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

USER = "User"


class Principal(NamedTuple):
    """The identity of a client, written `User:alice`."""

    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `Type:name`. Raises ValueError if the type or the name is missing."""
        kind, colon, name = text.partition(":")
        if not (colon and kind and name):
            raise ValueError(f"{text!r} is not a principal: it needs a type and a name, such as User:alice")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of clients that are not authenticated."""


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
    """An element of DER."""

    tag: int
    content: bytes
    encoded: bytes


def subject_of(certificate: bytes) -> str:
    """Return the distinguished name of the subject of a certificate in DER, as Java writes it.

    Kafka uses this form as the name of the principal. It is RFC 2253: the attributes from last to first, joined by
    commas, with keywords for nine types of attributes, and numbers with hexadecimal values for all others. OpenSSL and
    Python have other forms, which would match no ACL. Raises ValueError for invalid DER.
    """
    (outer,) = _elements(certificate)
    to_be_signed, *_ = _elements(outer.content)
    fields = [element for element in _elements(to_be_signed.content) if element.tag != _VERSION]
    _serial, _algorithm, _issuer, _validity, subject, *_ = fields
    return distinguished_name(subject.encoded)


def distinguished_name(name: bytes) -> str:
    """Return a Name in DER in the form of RFC 2253."""
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
    head, *others = numbers
    first = min(head // 40, 2)
    return ".".join(map(str, (first, head - 40 * first, *others)))


def _elements(data: bytes) -> Iterator[_Element]:
    position = 0
    while position < len(data):
        begin, tag, (length,) = position, data[position], data[position + 1 : position + 2]
        position += 2
        if length >= 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size])
            position += size
        end = position + length
        if end > len(data):
            raise ValueError("a DER element ends beyond its container")
        yield _Element(tag, data[position:end], data[begin:end])
        position = end


_DEFAULT: Final = "DEFAULT"
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_CASE: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


class NoRuleAppliesError(Exception):
    """No mapping rule applies to a certificate; the message has its distinguished name."""


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    """The rules of ssl.principal.mapping.rules: `RULE:pattern/replacement/[LU]` or `DEFAULT`, separated by commas.

    The first rule whose pattern matches the whole distinguished name applies. Raises ValueError for invalid rules.
    """

    rules: str = _DEFAULT
    _parsed: tuple[tuple[re.Pattern[str], str, str] | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parsed", tuple(_parse(self.rules.strip() or _DEFAULT)))

    def name_of(self, distinguished_name: str) -> str:
        """Return the principal's name. Raises NoRuleAppliesError."""
        for rule in self._parsed:
            if rule is None:
                return distinguished_name
            pattern, replacement, case = rule
            match = pattern.fullmatch(distinguished_name)
            if match is not None:
                return _CASE[case](match.expand(replacement))
        raise NoRuleAppliesError(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _parse(rules: str) -> list[tuple[re.Pattern[str], str, str] | None]:
    parsed: list[tuple[re.Pattern[str], str, str] | None] = []
    position = 0
    while position < len(rules):
        found = _RULE.match(rules, position)
        if found is None:
            raise ValueError(f"ssl.principal.mapping.rules: {rules[position:]!r} is not a rule")
        position = found.end()
        is_default, pattern, replacement, case = found.groups()
        parsed.append(None if is_default else (_compiled(pattern), _as_python_template(replacement), case))
    return parsed


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"ssl.principal.mapping.rules: {pattern!r} is not a valid pattern: {error}") from error


def _as_python_template(replacement: str) -> str:
    r"""Convert Java's `$1` and `\`-escapes to Python's `\g<1>` and `\\`."""

    def convert(found: re.Match[str]) -> str:
        group, escaped, other = found.groups()
        if group is not None:
            return rf"\g<{group}>"
        return (escaped if escaped is not None else other).replace("\\", r"\\")

    return re.sub(r"\$(\d)|\\(.)|([^$\\]|\$)", convert, replacement)


DEFAULT_MAPPING: Final = PrincipalMapping()
"""Uses the distinguished name unchanged."""
