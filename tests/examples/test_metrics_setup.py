"""The set-up of metrics on the page, in FastAPI and in Django: a scrape shows a dual write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import DOCS, ROOT, examples

WRITE = """
import sqlalchemy as sa
from dualwrite import DualWriter
from dualwrite.broker_emulator import Emulator

engine = sa.create_engine("sqlite:///shop.db")
with Emulator() as kafka, DualWriter(engine, prefix="shop", bootstrap_servers=kafka.bootstrap_servers) as pool:
    with pool.transaction() as tx:
        tx.send("orders", "lamp")
    print(client.get("/metrics").content.decode())
"""

CLIENTS = {
    "FastAPI": "from fastapi.testclient import TestClient\nclient = TestClient(app)\n",
    "Django": """
import django
from django.conf import settings
from django.test import Client

settings.configure(ROOT_URLCONF="__main__", ALLOWED_HOSTS=["testserver"])
django.setup()
client = Client()
""",
}


@pytest.mark.parametrize("framework", CLIENTS)
def test_a_scrape_shows_a_dual_write(framework: str, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus")
    setup = examples(DOCS / "observability.md")[list(CLIENTS).index(framework)]
    done = subprocess.run(
        [sys.executable, "-c", setup + CLIENTS[framework] + WRITE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = {line.partition("{")[0]: line for line in done.stdout.splitlines() if line.startswith("dualwrite_")}
    assert shown["dualwrite_decided_total"].endswith('outcome="committed"} 1.0')
    assert shown["dualwrite_pool_unrecovered"].endswith('prefix="shop"} 0.0')
