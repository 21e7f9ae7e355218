"""docs/django.md, done as its reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer
from tests.django.project import settings_of
from tests.support.databases import unique
from tests.support.topics import read_topic
from tests.test_docs import examples

ROOT = Path(__file__).parents[2]

RUN = """
import os, unittest
os.environ["DJANGO_SETTINGS_MODULE"] = "page_settings"
import django
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
call_command("check")
call_command("migrate", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE orders (number int PRIMARY KEY, item text)")
import page_tests
page_tests.place_order(7)
import asyncio
assert asyncio.run(page_tests.order(None, 8)).status_code == 201
assert page_tests.ready(None).status_code == 200
import page_asgi
assert page_asgi.application
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromModule(page_tests))
assert result.wasSuccessful() and result.testsRun == 1
connection.close()
"""


@pytest.mark.parametrize("engine", ["dualwrite.recipes.django.postgresql", "page_engine"])
def test_the_page(postgres_server: PostgresServer, emulator: Emulator, tmp_path: Path, engine: str) -> None:
    emulator.create_topic("orders")
    settings, view, ready, asgi, coroutine, _, mixin, tests = examples(ROOT / "docs" / "django.md")
    url = postgres_server.create_database(unique("page").replace("-", "_"))
    database = {**settings_of(url), "ENGINE": engine}
    settings = settings.replace("127.0.0.1:9092", emulator.bootstrap_servers)
    (tmp_path / "page_settings.py").write_text(f'{settings}\nDATABASES["default"] = {database!r}\nUSE_TZ = True\n')
    (tmp_path / "page_engine").mkdir()
    (tmp_path / "page_engine" / "__init__.py").touch()
    (tmp_path / "page_engine" / "base.py").write_text(mixin)
    (tmp_path / "page_tests.py").write_text("\n".join((view, ready, coroutine, tests)))
    (tmp_path / "page_asgi.py").write_text(asgi)
    (tmp_path / "run.py").write_text(RUN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert read_topic(emulator.bootstrap_servers, "orders") == [("7", "lamp"), ("8", "lamp")]
    engine_of_page = sa.create_engine(url, poolclass=sa.NullPool)
    with engine_of_page.connect() as connection:
        assert connection.execute(sa.text("SELECT * FROM orders")).all() == [(7, "lamp"), (8, "lamp")]
        leases = connection.execute(sa.text("SELECT prefix, slot, owner FROM kafka_transaction_lease")).all()
        assert leases == [("django-default", 0, None)]  # given back at the end of the process
