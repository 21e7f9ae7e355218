from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from dualwrite.recipes.sqlalchemy.tables import create_lease_table
from dualwrite.testing.postgres import PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.pgbouncer.workload import events
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.unavailable import skip


@pytest.fixture
def behind(postgres_server: PostgresServer) -> sa.URL:
    """A database of its own, past any pooler."""
    return postgres_server.create_database(f"bounced_{uuid.uuid4().hex[:8]}")


@pytest.fixture(params=[{"mode": "transaction"}], ids=["transaction"])
def pooler(request: pytest.FixtureRequest, behind: sa.URL) -> Iterator[PgBouncer]:
    try:
        made = PgBouncer(behind, **request.param)
    except ServerUnavailableError as error:
        skip(error)
    with made:
        yield made


@pytest.fixture
def direct(behind: sa.URL) -> Iterator[sa.Engine]:
    """An engine past the pooler, with all tables."""
    engine = sa.create_engine(behind)
    create_state_table(engine)
    create_lease_table(engine)
    events.metadata.create_all(engine)
    yield engine
    engine.dispose()
