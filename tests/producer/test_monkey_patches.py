"""Processes in which gevent or eventlet has replaced threads, sockets and more: refused in a sentence, never frozen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Emulator

GEVENT: Final = "import gevent.monkey; gevent.monkey.patch_all({})"
EVENTLET: Final = "import eventlet; eventlet.monkey_patch({})"
# Each is a process that imports everything, so that only one of the two libraries is in `make test`.
LIBRARIES: Final = pytest.mark.parametrize(
    ("library", "patch"), [pytest.param("gevent", GEVENT, marks=pytest.mark.proof), ("eventlet", EVENTLET)]
)

MADE: Final = """
import asyncio, sys
from importlib import import_module
if not {uvloop}:
    sys.modules["uvloop"] = None
{patch}
import dualwrite, sqlalchemy as sa
from dualwrite.async_producer import run_in_background
from dualwrite.partition_log import PartitionLog
from spark_sink.driver.protocol import Sink
from sqlalchemy.ext.asyncio import create_async_engine

kafka = {{"bootstrap_servers": "localhost:1"}}
database, awaited = sa.create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")

async def answer():
    return 1

async def in_loop(make):
    await make()

for make in (
    lambda: dualwrite.Producer(**kafka),
    lambda: dualwrite.TransactionAdmin(**kafka),
    lambda: dualwrite.DualWriter(database, transactional_id="a", **kafka),
    lambda: dualwrite.DualWriter(database, prefix="a", **kafka),
    lambda: dualwrite.PsycopgDualWriter("host=none", transactional_id="a", **kafka),
    lambda: dualwrite.PsycopgDualWriter("host=none", prefix="a", delivery=dualwrite.Outbox(), **kafka),
    lambda: dualwrite.RecoveryService(database, prefix="a", **kafka),
    lambda: PartitionLog(kafka, "t", timeout_ms=1000, unreachable_timeout_ms=1000, most_bytes=1000),
    lambda: Sink.open(None),
    lambda: import_module("dualwrite.broker_emulator"),
    lambda: asyncio.run(in_loop(lambda: dualwrite.AsyncProducer(**kafka))),
    lambda: asyncio.run(in_loop(lambda: dualwrite.AsyncTransactionAdmin(**kafka).describe_cluster())),
    lambda: asyncio.run(in_loop(lambda: dualwrite.AsyncDualWriter(awaited, transactional_id="a", **kafka))),
    lambda: asyncio.run(in_loop(lambda: dualwrite.AsyncpgDualWriter("postgresql://none", prefix="a", **kafka))),
):
    try:
        make()
    except Exception as error:
        print(type(error).__name__, *str(error).split()[:4])
steps = answer()
try:
    run_in_background(steps)
except dualwrite.ConfigError:
    steps.close()
    print("end")
"""


@LIBRARIES
@pytest.mark.parametrize(
    ("arguments", "uvloop", "module"),
    [("", True, "threading"), pytest.param("thread=False", False, "", marks=pytest.mark.proof)],
)
def test_nothing_is_made_in_a_patched_process(
    library: str, patch: str, arguments: str, uvloop: bool, module: str
) -> None:
    ran = run(MADE.format(patch=patch.format(arguments), uvloop=uvloop))
    refusals = ran.stdout.splitlines()
    assert refusals.pop() == "end", ran.stderr
    assert (refusals.pop(9), len(refusals)) == (f"RuntimeError {library} has patched this", 13)
    of_sockets = {"gevent": "queue", "eventlet": "socket"}[library]
    assert set(refusals) == {f"ConfigError {library} has patched {module or of_sockets}"}
    assert ran.returncode == 0


# The pool has nothing to do in the background when threads are patched: eventlet replaces the locks that a living
# thread holds, and freezes the process.
LATER: Final = """
import asyncio
import dualwrite, sqlalchemy as sa
from dualwrite.broker_emulator import Emulator

kafka = {{"bootstrap_servers": {servers!r}}}
database = sa.create_engine({url!r})
producer, admin = dualwrite.Producer(**kafka), dualwrite.TransactionAdmin(**kafka)
writer = dualwrite.DualWriter(database, transactional_id="a", **kafka)
pool = dualwrite.DualWriter(database, prefix="b", lease_ms=600_000, **kafka)

def write(by):
    with by.transaction() as tx:
        tx.session.execute(sa.text("INSERT INTO sold VALUES (1)"))
        tx.send("t", b"dual write")

async def main():
    awaited = dualwrite.AsyncProducer(**kafka)
    await (await awaited.send("t", b"x"))
    {patch}
    try:
        await awaited.send("t", b"y")
    except dualwrite.ConfigError as error:
        print(*str(error).split()[:4])

with database.begin() as connection:
    connection.execute(sa.text("CREATE TABLE sold (id integer)"))
producer.send("t", b"x").result(60)
admin.describe_cluster()
write(writer)
pool.recover()
write(pool)
asyncio.run(main())
for use in (
    lambda: producer.send("t", b"y"),
    producer.flush,
    producer.close,
    admin.describe_cluster,
    lambda: write(writer),
    writer.recover,
    lambda: write(pool),
    pool.recover,
    Emulator().start,
):
    try:
        use()
    except (dualwrite.ConfigError, RuntimeError) as error:
        print(*str(error).split()[:4])
admin.close()
writer.close()
"""


@LIBRARIES
def test_an_older_producer_does_nothing_once_threads_are_greenlets(tmp_path: Path, library: str, patch: str) -> None:
    url = f"sqlite:///{tmp_path / 'database'}"
    with Emulator(topics={"t": 1}) as emulator:
        ran = run(LATER.format(patch=patch.format(""), servers=emulator.bootstrap_servers, url=url))
        refusals = [f"{library} has patched threading"] * 9 + [f"{library} has patched this"]
        assert ran.stdout.splitlines() == refusals, ran.stderr
        assert {record.value for record in emulator.records("t", read_committed=False)} == {b"x", b"dual write"}
    with sa.create_engine(url).connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM sold")) == 2


HARMLESS: Final = {
    "gevent": "import gevent.monkey as m; m.patch_time(); m.patch_os(); m.patch_ssl(); m.patch_subprocess()",
    "eventlet": "import eventlet; eventlet.monkey_patch(time=True, os=True, subprocess=True)",
}
WORKS: Final = """
{patch}
import dualwrite, sqlalchemy as sa
database = sa.create_engine({url!r})
with dualwrite.DualWriter(database, prefix="a", bootstrap_servers={servers!r}) as pool:
    with pool.transaction() as tx:
        tx.session.execute(sa.text("CREATE TABLE sold (id integer)"))
        tx.send("t", b"x")
with database.connect() as connection:
    print(sa.inspect(connection).has_table("sold"))
"""


@pytest.mark.parametrize("library", ["eventlet", "gevent"])
def test_a_process_in_which_other_parts_are_patched_writes(tmp_path: Path, library: str) -> None:
    with Emulator(topics={"t": 1}) as emulator:
        servers = emulator.bootstrap_servers.replace("127.0.0.1", "localhost")
        url = f"sqlite:///{tmp_path / 'database'}"
        ran = run(WORKS.format(patch=HARMLESS[library], servers=servers, url=url))
        assert ran.stdout == "True\n", ran.stderr
        assert [record.value for record in emulator.records("t")] == [b"x"]


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
