"""Strings of more than 32,767 bytes: like Kafka, the emulator closes the connection, in every request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.broker_emulator import Emulator
from tests.emulator.api.group_requests import join
from tests.emulator.api.offset_requests import commit
from tests.emulator.api.raw_client import RawClient

FITS, TOO_LONG = "x" * 32_767, "\u00e9" * 16_384
REQUESTS: dict[str, Callable[[RawClient, str], Any]] = {
    "InitProducerId": lambda client, name: client.init_producer_id(name).error_code,
    "OffsetCommit": lambda client, name: commit(client, name, 1),
    "JoinGroup": lambda client, name: join(client, name).error_code,
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_a_name_that_no_record_can_hold(
    emulator: Emulator,
    client: RawClient,
    request_of: Callable[[RawClient, str], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    assert request_of(client, FITS) == 0
    with RawClient(emulator.bootstrap_servers) as other, pytest.raises(ConnectionError):
        request_of(other, TOO_LONG)
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
