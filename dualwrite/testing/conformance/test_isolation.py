"""At every isolation level: no transaction decides by an old state row, and the loser of a race writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import sqlalchemy as sa

from dualwrite.errors import DualWriteError, StateRowError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.testing.conformance.site import DEADLINE_S, Site, events, make_writer

EMPTY = PreparedTxnState()
FIRST = PreparedTxnState("42:7")
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT")


@pytest.fixture(params=LEVELS)
def engine(site: Site, request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    """Create an engine for the database under test, at the isolation level."""
    level = str(request.param)
    with site.direct.connect() as connection:
        offered = connection.dialect.get_isolation_level_values(connection.connection.dbapi_connection)  # type: ignore[arg-type]
    if level not in offered:
        pytest.skip(f"this database does not offer {level}")
    made = sa.create_engine(site.url, isolation_level=level)
    yield made
    made.dispose()


def test_an_old_snapshot_never_shows_an_old_row(site: Site, engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("one lock for the whole database: no other transaction can commit between our read and our lock")
    store = site.store()
    with engine.connect() as older:
        older.execute(sa.select(sa.func.count()).select_from(events))  # the snapshot is taken
        with site.direct.begin() as newer:
            store.lock(newer, site.transactional_id, timeout_ms=None)
            store.write(newer, site.transactional_id, previous=EMPTY, new=FIRST, manifest="")
        try:
            seen = store.lock(older, site.transactional_id, timeout_ms=1000)
        except (sa.exc.DBAPIError, StateRowError):
            return  # it fails before anything was sent, which is just as safe
        assert seen == FIRST


def test_the_loser_of_a_race_for_the_data_writes_neither_side(site: Site, engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("one lock for the whole database: there is no race")
    with site.direct.begin() as connection:
        connection.execute(sa.insert(events), {"id": 1001, "body": "0"})
    the_row = events.c.id == 1001

    def overtake() -> None:
        with suppress(sa.exc.DBAPIError), site.direct.begin() as connection:
            connection.execute(sa.update(events).where(the_row).values(body="rival"))

    rival = threading.Thread(target=overtake, daemon=True)
    expected: list[str] = []
    with make_writer(engine, site.emulator.bootstrap_servers, site.transactional_id, None) as writer:
        try:
            with writer.transaction() as tx:
                read = tx.connection.scalar(sa.select(events.c.body).where(the_row))
                rival.start()
                rival.join(0.3)  # if a read locks the row, the rival's update comes second
                text = site.put(tx)
                tx.connection.execute(sa.update(events).where(the_row).values(body=f"{read}+1"))
            expected = [text]
        except (sa.exc.DBAPIError, DualWriteError):
            pass
        rival.join(DEADLINE_S)
    assert [body for body in site.in_table() if body.startswith("event")] == expected
    assert site.in_topic() == expected
