"""A tagged field that the broker does not know is ignored, wherever it stands in a request (KIP-482)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.log.record_fields import uvarint
from dualwrite.broker_emulator.messages.schema import schema
from dualwrite.broker_emulator.messages.schemas import request_schema
from dualwrite.broker_emulator.net.requests import decoded
from tests.emulator.api.raw_client import KEYS, RawClient, milliseconds, request_type
from tests.emulator.api.tagged import UNKNOWN_TAGS, with_unknown_tags
from tests.emulator.test_codec import entities

HEADER_TAGS = uvarint(len(UNKNOWN_TAGS)) + b"".join(
    uvarint(tag) + uvarint(len(data)) + data for tag, data in UNKNOWN_TAGS.items()
)
SERVED = [
    pytest.param(
        api.key,
        version,
        id=f"{api.schema_name}-v{version}",
        marks=[] if version == api.max_version else pytest.mark.proof,
    )
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_every_request_means_the_same_with_unknown_tags(key: int, version: int) -> None:
    request_type: Any = request_schema(key, version)

    @settings(max_examples=4, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(entities(request_type))
    def check(request: Any) -> None:
        assert decoded(schema(key, version), b"head" + with_unknown_tags(request), 4, 1_000_000) == request

    check()


def frame_with_tags(version: int) -> bytes:
    """Return an InitProducerId request with unknown tags in its header and its body."""
    kind: Any = request_type("init_producer_id", version)
    request = kind(transactional_id="t", transaction_timeout=milliseconds(1000), producer_id=-1, producer_epoch=-1)
    head = struct.pack(">hhih", KEYS["init_producer_id"], version, 7, 1) + b"c" + HEADER_TAGS
    return head + with_unknown_tags(request)


def test_a_truncated_request_with_unknown_tags_ends_its_connection() -> None:
    frame = frame_with_tags(5)
    with Emulator() as emulator:
        for end in range(len(frame)):
            with RawClient(emulator.bootstrap_servers) as client:
                client.send_bytes(struct.pack(">i", end) + frame[:end])
                assert client.is_closed(), end
