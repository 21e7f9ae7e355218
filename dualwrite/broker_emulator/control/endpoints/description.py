"""What can be asked here, as OpenAPI."""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint


async def show(controlled: Controlled) -> dict[str, Any]:
    # the description is of all endpoints, and so of this one
    from dualwrite.broker_emulator.control.endpoints import ENDPOINTS as EVERY
    from dualwrite.broker_emulator.control.openapi import document

    return document(EVERY)


ENDPOINTS = (Endpoint("GET", "/v1/openapi.json", show, "This description, in OpenAPI 3.1"),)
