"""The fixture `broker` for the folders of foreign clients, which import it in their conftest."""

from __future__ import annotations

import pytest

from .client_folders import BROKER_FIXTURES
from .conftest import Broker


@pytest.fixture(scope="session", params=list(BROKER_FIXTURES))
def broker(request: pytest.FixtureRequest) -> Broker:
    """The emulator as it is by default, and a real Apache Kafka.

    A second profile of the emulator would add nothing: none of these clients meets a difference.
    """
    chosen: Broker = request.getfixturevalue(request.param)
    return chosen
