"""The endpoints of the control port, one file per subject; each file ends with its table."""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.endpoints import (
    config,
    faults,
    groups,
    nodes,
    overview,
    records,
    time_control,
    topics,
    transactions,
)
from dualwrite.broker_emulator.control.openapi import document


async def _describe(controlled: ControlledEmulator) -> dict[str, Any]:
    return document(ENDPOINTS)


ENDPOINTS: tuple[Endpoint, ...] = (
    *overview.ENDPOINTS,
    *faults.ENDPOINTS,
    *time_control.ENDPOINTS,
    *nodes.ENDPOINTS,
    *topics.ENDPOINTS,
    *records.ENDPOINTS,
    *transactions.ENDPOINTS,
    *groups.ENDPOINTS,
    *config.ENDPOINTS,
    Endpoint("GET", "/v1/openapi.json", _describe, "This description, in OpenAPI 3.1"),
)
