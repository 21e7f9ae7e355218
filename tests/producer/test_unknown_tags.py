"""A tagged field that the client does not know is ignored, wherever it stands in a response (KIP-482)."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.messages.schemas import response_schema
from dualwrite.client import kafka_python
from tests.emulator.api.tagged import with_unknown_tags
from tests.fuzz.messages import random_message

READ: Final = [
    value
    for name, value in vars(kafka_python).items()
    if name.endswith("Response") and getattr(value, "min_version", None) is not None
]
"""The responses that the client reads."""


def _flexible() -> list[Any]:
    """Return each response of the client, in each version with tagged fields."""
    return [
        pytest.param(read, version, id=f"{read.__name__}-v{version}")
        for read in READ
        for version in range(read.min_version, read.max_version + 1)
        if read.flexible_version_q(version)
    ]


def test_all_responses_are_here() -> None:
    assert len(READ) == 20


@pytest.mark.parametrize(("read", "version"), _flexible())
def test_every_response_means_the_same_with_unknown_tags(read: Any, version: int) -> None:
    kind: Any = response_schema(read.API_KEY, version)

    random = Random(0)
    for _ in range(30):
        response = random_message(random, kind)
        if read is kafka_python.ApiVersionsResponse:  # with an error, it is of version 0 (KIP-511)
            response = replace(response, error_code=ErrorCode.none)
        plain, tagged = with_unknown_tags(response, {}), with_unknown_tags(response)
        decoded = read.decode(tagged, version=version)
        assert repr(decoded) == repr(read.decode(plain, version=version))
