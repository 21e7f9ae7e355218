"""`dualwrite init-db`, and the operation for Alembic."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import alembic.command
import pytest
import sqlalchemy as sa
from alembic.config import Config

from dualwrite.cli.init_db import TABLES
from dualwrite.errors import StateRowError
from dualwrite.recipes.consume.consumed_offsets import OffsetsInDatabase
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.cli.conftest import Call, assert_one_line
from tests.support.databases import Database

NAMES = {table.name for table in TABLES}

ENV = """
from alembic import context
import sqlalchemy as sa

url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    with sa.create_engine(url).connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
"""

REVISION = """
from dualwrite.recipes.sqlalchemy.migrations import *

revision = "1"
down_revision = None


def upgrade():
    create_dualwrite_tables()


def downgrade():
    drop_dualwrite_tables()
"""


def test_tables_are_created_once(call: Call, database: Database) -> None:
    url = database.url.render_as_string(hide_password=False)
    first, second = call("init-db", "--database", url), call("init-db", "--database", url)
    assert (first.code, second.code) == (0, 0)
    assert first.out.splitlines() == [f"{table.name}: created" for table in TABLES]
    assert second.out.splitlines() == [f"{table.name}: already existed" for table in TABLES]
    assert set(sa.inspect(database.engine).get_table_names()) >= NAMES


def test_the_ddl_does_the_same(call: Call, database: Database) -> None:
    dialect = database.engine.dialect.name
    shown = call("init-db", "--sql", "--dialect", dialect)
    assert shown.code == 0
    with database.engine.begin() as connection:
        for statement in shown.out.split(";")[:-1]:
            connection.execute(sa.text(statement))
    assert set(sa.inspect(database.engine).get_table_names()) >= NAMES
    DualWriter(database.engine, create_table=False, bootstrap_servers="127.0.0.1:1", transactional_id="a").close()


def test_the_table_of_consumers_on_demand(call: Call, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}"
    assert "kafka_consumed_offset" not in call("init-db", "--database", url).out
    offsets = OffsetsInDatabase(sa.create_engine(url), create_table=False)
    group: Any = SimpleNamespace(group_id="g")
    with pytest.raises(StateRowError, match="`dualwrite init-db --consumed-offsets`"):
        asyncio.run(offsets.start(group, []))
    assert (
        call("init-db", "--database", url, "--consumed-offsets").out.splitlines()[-1]
        == "kafka_consumed_offset: created"
    )
    assert asyncio.run(offsets.start(group, [])) == {}
    assert call("init-db", "--sql", "--dialect", "mysql", "--consumed-offsets").out.count("CREATE TABLE ") == 4


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite", "mssql", "oracle"])
def test_the_ddl_of_every_dialect(call: Call, dialect: str) -> None:
    done = call("init-db", "--sql", "--dialect", dialect)
    assert (done.code, done.err) == (0, "")
    assert done.out.count("CREATE TABLE ") == len(TABLES)


def test_the_dialect_of_a_url_whose_driver_is_missing(call: Call) -> None:
    url = {"DUALWRITE_DATABASE_URL": "mysql+nodriver://user:sesame@db/shop"}
    assert "ENGINE=InnoDB" in call("init-db", "--sql", env=url).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --database, or --sql with --dialect"),
        (("--sql",), "--sql needs --dialect"),
        (("--sql", "--dialect", "nix"), "nix"),
        (("--database", "sqlite:///x", "--dialect", "sqlite"), "--dialect is only for --sql"),
        (("--database", "no url"), "write --database as dialect+driver"),
        (("--database", "sqlite:////nowhere/at/all.db"), "unable to open database file"),
    ],
    ids=" ".join,
)
def test_wrong_usage(call: Call, arguments: tuple[str, ...], said: str) -> None:
    assert_one_line(call("init-db", *arguments), 2, said)


@pytest.fixture
def migrations(tmp_path: Path, database: Database) -> Config:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "versions" / "one.py").write_text(REVISION)
    config = Config(output_buffer=io.StringIO())
    config.set_main_option("script_location", str(tmp_path))
    url = database.url.render_as_string(hide_password=False)
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def test_a_migration_as_sql(migrations: Config, database: Database) -> None:
    alembic.command.upgrade(migrations, "head", sql=True)
    assert isinstance(migrations.output_buffer, io.StringIO)
    assert migrations.output_buffer.getvalue().count("CREATE TABLE kafka_transaction_") == len(TABLES)
    assert not NAMES & set(sa.inspect(database.engine).get_table_names())


def test_the_command_names_the_extra_it_needs(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')\n")
    done = subprocess.run(
        [sys.executable, "-m", "dualwrite", "doctor"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dualwrite: the command needs the packages of its extra: pip install 'dualwrite[cli]'\n"
