"""The quickstart."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from examples.quickstart import place_order
from tests.support.topics import read_topic


def test_the_order_is_in_the_table_and_in_the_topic(emulator: Emulator, tmp_path: Path) -> None:
    emulator.create_topic("orders")
    url = f"sqlite:///{tmp_path}/orders.db"
    place_order(url, emulator.bootstrap_servers)
    with sa.create_engine(url).connect() as connection:
        assert connection.execute(sa.text("SELECT id, item FROM orders")).all() == [(1, "lamp")]
    assert read_topic(emulator.bootstrap_servers, "orders") == [("1", '{"item": "lamp"}')]
