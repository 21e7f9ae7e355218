from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.postgres_pair import PostgresNode, PostgresPair, new_root
from tests.support.unavailable import skip


@pytest.fixture(scope="session")
def empty_node() -> Iterator[PostgresNode]:
    """One that never runs, to begin as."""
    root = new_root()
    try:
        node = PostgresNode(root / "empty")
    except ServerUnavailableError as error:
        skip(error)
    node.initialise()
    yield node
    shutil.rmtree(root)


@pytest.fixture
def pair(empty_node: PostgresNode) -> Iterator[PostgresPair]:
    with PostgresPair() as made:
        yield made.start(empty_node)


@pytest.fixture(scope="module")
def one_node(empty_node: PostgresNode) -> Iterator[PostgresNode]:
    with PostgresPair() as made:
        made.primary.copy(empty_node)
        made.primary.start()
        yield made.primary
