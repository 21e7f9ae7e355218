from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.postgres_pair import PostgresNode, PostgresPair
from tests.support.unavailable import skip


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    try:
        made = PostgresPair()
    except ServerUnavailableError as error:
        skip(error)
    with made:
        yield made.start()


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresNode]:
    try:
        made = PostgresPair()
    except ServerUnavailableError as error:
        skip(error)
    with made:
        made.primary.initialise()
        made.primary.start()
        yield made.primary
