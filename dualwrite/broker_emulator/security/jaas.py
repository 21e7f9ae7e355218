"""One entry of JAAS as Kafka has it in sasl.jaas.config: `module flag name="value" ...;` (KIP-85)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|([=;])|([^\s=;"]+))""", re.DOTALL)


class JaasEntry(NamedTuple):
    """A login module and its options."""

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module}, options hidden)"


def parse_jaas(text: str) -> JaasEntry:
    """Raises ValueError, which never repeats a value: it may be a password."""
    tokens = _tokens(text.strip())
    if len(tokens) < 3 or tokens[-1] != ";" or tokens[1].lower() not in _FLAGS:
        raise ValueError(
            f'a login module, one of {", ".join(_FLAGS)}, options as name="value", and a semicolon at the end'
        )
    module, _flag, *rest, _end = tokens
    if len(rest) % 3 or any(equals != "=" for equals in rest[1::3]):
        raise ValueError('its options have to be name="value", and only one entry is taken')
    return JaasEntry(module, dict(zip(rest[::3], rest[2::3], strict=True)))


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError("a quotation mark that is not closed")
        position = found.end()
        quoted, mark, word = found.groups()
        tokens.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else mark or word)
    return tokens
