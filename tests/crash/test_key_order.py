"""Records of one row behind those of a dead process: `chaos.py` compares the order of all rows under kills."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from dualwrite import DualWriter, TransactionAdmin
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.outcome import Outcome
from tests.crash.killed import run_until_killed
from tests.crash.ordered_worker import TOPIC, change, decide_and_die
from tests.support.databases import PostgresDatabase
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_topic


def published(emulator: Emulator) -> list[str]:
    """Return the versions of the row, in the order of the partition."""
    return [version for _, version in read_topic(emulator.bootstrap_servers, TOPIC)]


@pytest.fixture
def second(postgres: PostgresDatabase, emulator: Emulator) -> DualWriter:
    """Leave version 1 in doubt under the id `first` of a dead process; return a writer with the id `second`."""
    with postgres.aside.begin() as connection:
        connection.execute(sa.text("CREATE TABLE accounts (version integer NOT NULL)"))
        connection.execute(sa.text("INSERT INTO accounts VALUES (0)"))
    emulator.create_topic(TOPIC)
    url = postgres.url.render_as_string(hide_password=False)
    run_until_killed(decide_and_die, url, emulator.bootstrap_servers)
    return DualWriter(postgres.engine, bootstrap_servers=emulator.bootstrap_servers, transactional_id="second")


def recover_first(postgres: PostgresDatabase, emulator: Emulator) -> Outcome:
    servers = emulator.bootstrap_servers
    with DualWriter(postgres.engine, bootstrap_servers=servers, transactional_id="first") as successor:
        (found,) = successor.recover()
        return found.outcome


def test_blocks_in_doubt_keep_their_place(second: DualWriter, postgres: PostgresDatabase, emulator: Emulator) -> None:
    with second:
        change(second)
    assert published(emulator) == []  # readers wait at the transaction in doubt
    assert recover_first(postgres, emulator) is Outcome.COMMITTED
    assert published(emulator) == ["1", "2"]


def test_blocks_published_again_come_later(second: DualWriter, postgres: PostgresDatabase, emulator: Emulator) -> None:
    """The exception that docs/order.md names: a broker has aborted a decided transaction."""
    with second:
        with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
            admin.force_terminate_transaction(kafka_id_of(postgres.engine, "first"))
        change(second)
    assert recover_first(postgres, emulator) is Outcome.REPAIRED
    assert published(emulator) == ["2", "1"]
