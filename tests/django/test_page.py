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
from tests.support.topics import committed_values
from tests.test_docs import examples

ROOT = Path(__file__).parents[2]

RUN = """
import os, unittest
os.environ["DJANGO_SETTINGS_MODULE"] = "page_settings"
import django
django.setup()
from django.contrib import admin
from django.core.management import call_command
from django.db import connection, transaction
from django.urls import path
from page_app.models import Order
admin.site.register(Order)
urlpatterns = [path("admin/", admin.site.urls)]
call_command("check")
call_command("migrate", run_syncdb=True, verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE orders (number int PRIMARY KEY, item text)")
import page_tests
page_tests.place_order(7)
import asyncio
assert asyncio.run(page_tests.order(None, 8)).status_code == 201
import page_asgi
assert page_asgi.application
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromModule(page_tests))
assert result.wasSuccessful() and result.testsRun == 1
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client, override_settings
client = Client(raise_request_exception=False, headers={"host": "localhost"})
client.force_login(User.objects.create_superuser("root"))
orders, lamp = "/admin/page_app/order/", {"number": "9", "item": "lamp"}
for address, form in (
    (f"{orders}add/", lamp),
    (f"{orders}9/change/", {**lamp, "item": "sock"}),
    (orders, {"action": "delete_selected", "_selected_action": ["9"], "post": "yes"}),
):
    assert client.post(address, form).status_code == 302
with override_settings(DUALWRITE={"default": {"bootstrap_servers": "127.0.0.1:1", "prefix": "away"}}):
    refused = client.post(f"{orders}add/", lamp)
assert (refused.status_code, refused["Retry-After"]) == (503, "1")
assert (Order.objects.count(), LogEntry.objects.count()) == (0, 3)
connection.close()
"""

FOR_THE_ADMIN = """
USE_TZ, SECRET_KEY, ROOT_URLCONF, ALLOWED_HOSTS = True, "-", "__main__", ["localhost"]
INSTALLED_APPS += [f"django.contrib.{name}" for name in ("admin", "auth", "sessions", "messages")] + ["page_app"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "dualwrite.recipes.django.middleware.RetryLaterMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
"""


@pytest.mark.parametrize("engine", ["dualwrite.recipes.django.postgresql", "page_engine"])
def test_the_page(postgres_server: PostgresServer, emulator: Emulator, tmp_path: Path, engine: str) -> None:
    emulator.create_topic("orders")
    settings, view, model, asgi, coroutine, _, mixin, tests = examples(ROOT / "docs" / "django.md")
    url = postgres_server.create_database(unique("page").replace("-", "_"))
    database = {**settings_of(url), "ENGINE": engine}
    settings = settings.replace("127.0.0.1:9092", emulator.bootstrap_servers)
    (tmp_path / "page_settings.py").write_text(f'{settings}\nDATABASES["default"] = {database!r}\n{FOR_THE_ADMIN}')
    for package in ("page_engine", "page_app"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "page_app" / "models.py").write_text(model)
    (tmp_path / "page_engine" / "base.py").write_text(mixin)
    (tmp_path / "page_tests.py").write_text("\n".join((view, coroutine, tests)))
    (tmp_path / "page_asgi.py").write_text(asgi)
    (tmp_path / "run.py").write_text(RUN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    of_the_admin = [b'{"number": 9, "item": "lamp"}', b'{"number": 9, "item": "sock"}', None]
    assert committed_values(emulator.bootstrap_servers, "orders") == [b"lamp", b"lamp", *of_the_admin]
    engine_of_page = sa.create_engine(url, poolclass=sa.NullPool)
    with engine_of_page.connect() as connection:
        assert connection.execute(sa.text("SELECT * FROM orders")).all() == [(7, "lamp"), (8, "lamp")]
        leases = connection.execute(sa.text("SELECT prefix, slot, owner FROM kafka_transaction_lease")).all()
        assert ("django-default", 0, None) in leases  # given back at the end of the process
