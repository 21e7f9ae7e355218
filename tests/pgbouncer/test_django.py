"""Django behind a PgBouncer in transaction mode: no statement is prepared, and each transaction is its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import sqlalchemy as sa
from django.db import connections, transaction

from dualwrite.broker_emulator.emulator import Emulator
from tests.crash.scenario import OrdinaryError
from tests.django.project import add_alias, drop_alias
from tests.pgbouncer.workload import INSERT, TOPIC, events
from tests.recipes.pools import QUIET_LEASE_MS
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.topics import read_topic


def test_both_sides_agree(pooler: PgBouncer, direct: sa.Engine, emulator: Emulator) -> None:
    emulator.create_topic(TOPIC)
    settings = {"bootstrap_servers": emulator.bootstrap_servers, "lease_ms": QUIET_LEASE_MS, "max_writers": 3}
    add_alias("bounced", pooler.url, settings)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(_request, range(30)))
    drop_alias("bounced")
    with direct.connect() as connection:
        in_table = sorted(connection.scalars(sa.select(events.c.body)))
    assert in_table == sorted(str(number) for number in range(30))
    assert sorted(value for _, value in read_topic(emulator.bootstrap_servers, TOPIC)) == in_table


def _request(number: int) -> None:
    with transaction.atomic(using="bounced"):
        _put(str(number))
        with suppress(OrdinaryError), transaction.atomic(using="bounced"):
            _put(f"dropped {number}")
            raise OrdinaryError
    connections["bounced"].close()


def _put(body: str) -> None:
    from dualwrite.recipes.django import send

    with connections["bounced"].cursor() as cursor:
        cursor.execute(INSERT, (body,))
    send(TOPIC, value=body, key="k", using="bounced")
