"""The pytest option that names the database, and the fixtures of the conformance tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.conformance.site import Site, events


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database-url", help="SQLAlchemy URL of the database under test; use a scratch database")


@pytest.fixture(scope="session")
def database_url(request: pytest.FixtureRequest) -> Iterator[sa.URL]:
    text = request.config.getoption("--database-url")
    if not text:
        pytest.skip("no database to test: set --database-url")
    url = sa.make_url(text)
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    events.metadata.drop_all(engine)
    events.metadata.create_all(engine)
    yield url
    events.metadata.drop_all(engine)


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    with Emulator() as broker:
        yield broker


@pytest.fixture
def site(database_url: sa.URL, emulator: Emulator) -> Iterator[Site]:
    made = Site(database_url, emulator)
    yield made
    made.close()
