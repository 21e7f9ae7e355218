"""The README's first example runs on an Apache Kafka 4 as delivered: no two-phase commit, no topic created before."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.guarantee import Tier
from tests.support.topics import read_topic

from .clusters import Cluster
from .conftest import NewName

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("cluster", [Tier.BOUNDED], indirect=True, ids=["tier 3"])
def test_the_first_example_needs_nothing_else(cluster: Cluster, new_name: NewName, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    topic, url, servers = new_name("orders"), f"sqlite:///{tmp_path / 'shop.db'}", cluster.bootstrap_servers
    for shown, here in (
        ("postgresql+psycopg://localhost/shop", url),
        ("127.0.0.1:9092", servers),
        ('tx.send("orders"', f'tx.send("{topic}"'),
        ('transactional_id="orders-1"', f'transactional_id="{new_name("id")}"'),
    ):
        assert code.count(shown) == 1
        code = code.replace(shown, here)
    script = tmp_path / "example.py"
    script.write_text(code)
    runpy.run_path(str(script), run_name="example")
    with sa.create_engine(url).connect() as connection:
        assert connection.execute(sa.text("SELECT id, item FROM orders")).all() == [(1, "lamp")]
    assert read_topic(servers, topic) == [("1", '{"item": "lamp"}')]
