"""A commit store that may forget confirmed commits is refused by the rule of the writers."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa

from dualwrite.errors import UnsafeDatabaseError
from spark_sink.driver.protocol import Sink
from spark_sink.errors import SinkOptionError
from spark_sink.options import DualMode, DualTable, StoreOptions, parse
from spark_sink.store.commit_store import CommitStore
from tests.spark.fake_kafka import FakeBroker, FakeKafkaSide
from tests.spark.sink_model import QUERY, SCHEMA, sink_options
from tests.support.databases import MariaDbDatabase
from tests.support.servers.mariadb import global_setting

FLUSH = "innodb_flush_log_at_trx_commit"
LEAST = {"sinkId": "s", "kafka.bootstrap.servers": "nowhere:1", "commitStore.urlEnv": "U"}


def plan(database: MariaDbDatabase, *accept: str) -> None:
    """Plan the batch of a sink with a table. Each database has an engine of its own, which is examined once."""
    url = database.url.render_as_string(hide_password=False)
    store = StoreOptions(url=url, url_env=None, schema=None, accept=accept)
    options = sink_options("s", store=store, dual=DualTable("target", ("value",), DualMode.INSERT, None))
    Sink(options, CommitStore.open(store), FakeKafkaSide(FakeBroker())).plan(SCHEMA, query_id=QUERY)


def test_a_server_that_forgets_in_a_crash_is_refused_unless_that_is_accepted(mariadb: MariaDbDatabase) -> None:
    with mariadb.aside.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE target (value TEXT)")
    before = sa.inspect(mariadb.aside).get_table_names()
    with global_setting(mariadb.aside, FLUSH, 0):
        with pytest.raises(UnsafeDatabaseError, match=rf"{FLUSH}: 0.*set the option commitStore\.accept={FLUSH}"):
            plan(mariadb)
        assert sa.inspect(mariadb.aside).get_table_names() == before, "nothing was written"
        plan(mariadb, FLUSH)
    assert "dw_sink" in sa.inspect(mariadb.aside).get_table_names()


def test_a_database_that_loses_commits_with_its_machine_is_warned_of(
    mariadb: MariaDbDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    with mariadb.aside.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE target (value TEXT)")
    with global_setting(mariadb.aside, FLUSH, 2), caplog.at_level(logging.WARNING):
        plan(mariadb)
        plan(mariadb)
    assert caplog.text.count(f"the database's {FLUSH} is 2") == 1


def test_every_accepted_risk_has_a_name() -> None:
    assert parse({**LEAST, "commitStore.accept": f"galera,{FLUSH}"}).store.accept == ("galera", FLUSH)
    with pytest.raises(SinkOptionError, match=r"commitStore\.accept: 'gallera' is not one of .*galera"):
        parse({**LEAST, "commitStore.accept": "gallera"})
