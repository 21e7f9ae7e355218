"""Python samples of the README and the pages pass mypy and pyright in strict mode, as a user's code would.

A sample that goes on from another one is checked behind it, and an incomplete one behind its missing part (`BEFORE`).
One or two lines without context are no sample (`FRAGMENTS`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.unavailable import skip
from tests.test_docs import PAGES, ROOT, examples

pytestmark = pytest.mark.timeout(1800)  # each checker reads all imports of the samples

FRAGMENTS: Final = (
    "kafka_crashes.kill_client(",
    "broker.faults.add(Fault(point=",
    "df.write.format(",
    "orders = (\n    spark.readStream",
)
"""How they begin."""

ENGINE: Final = """
import sqlalchemy as sa

engine = sa.create_engine("postgresql+psycopg://localhost/shop")
"""

ORDERS: Final = """
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, Mapper, mapped_column, object_session

from dualwrite.recipes.sqlalchemy.sessions import send

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
"""

WRITER: Final = f"""{ENGINE}
from dualwrite import DualWriter

writer = DualWriter(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1")
"""

PLACE_ORDER: Final = "def place_order(number: int) -> None: ...\n\n\n"

FIELDS: Final = '# mypy: disable-error-code="var-annotated"\n# pyright: reportUnknownVariableType=false\n'
"""Django's fields have types by the plugin of its stubs."""

BEFORE: Final = {
    '@event.listens_for(Order, "after_insert")': ORDERS,
    "from dualwrite.recipes.sqlalchemy.writer import DualTransaction\n\n\n@writer": WRITER,
    "with DualWriter(engine": f"{ENGINE}\nfrom dualwrite import DualWriter\n",
    "from dualwrite.recipes.consume.consume import forget_consumed_offsets": ENGINE,
    "from dualwrite.recipes.recovery.service import RecoveryService": ENGINE,
    "from asgiref.sync import sync_to_async": PLACE_ORDER,
    "from django.test import TestCase": PLACE_ORDER,
    "from django.db import models": FIELDS,
    "from dualwrite import DualWriter\n\nwriter = DualWriter(\n    engine,": f'{ENGINE}\npassword = "secret"\n',
    "with Emulator(nodes=3": "from dualwrite.broker_emulator import Emulator\n",
}
"""The code before a sample, by its beginning."""

UNTYPED: Final = (
    "aiokafka",
    "asyncpg",
    "celery",
    "confluent_kafka",
    "kafka",
    "pyarrow",
    "pyiceberg",
)
UNTYPED_TOO: Final = ("aws_msk_iam_sasl_signer", "opentelemetry.exporter", "pyspark")
"""Packages without types: their objects are unknown to checkers, in any code."""

RELAXED: Final = (
    "# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, "
    "reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportCallIssue=false, "
    "reportUntypedFunctionDecorator=false\n"
    '# mypy: disable-error-code="untyped-decorator"\n'
)

TYPOS: Final = {
    "linger_msec": 'from dualwrite import Producer\n\nProducer(bootstrap_servers="h:1", linger_msec=5)\n',
    "bootstrap_server": (
        'from dualwrite import AsyncProducer\n\n\nasync def f() -> None:\n    AsyncProducer(bootstrap_server="h:1")\n'
    ),
    "compresion_type": (
        f"{ENGINE}\nfrom dualwrite import DualWriter\n\n"
        'DualWriter(engine, prefix="p", bootstrap_servers="h:1", compresion_type="gzip")\n'
    ),
    "transactional_ids": (
        "from dualwrite import PsycopgDualWriter\n\n"
        'PsycopgDualWriter("", transactional_id="p", bootstrap_servers="h:1", transactional_ids="x")\n'
    ),
    "max_block": ('from dualwrite import TransactionAdmin\n\nTransactionAdmin(bootstrap_servers="h:1", max_block=5)\n'),
}
"""Settings with a typo, each in a program."""

NEITHER_OR_BOTH: Final = {
    f"{which}_{writer.lower()}": (
        f"from sqlalchemy import create_engine\nfrom dualwrite import {writer}\n\n"
        f'{writer}({database}, bootstrap_servers="h:1"{given})\n'
    )
    for writer, database in (("DualWriter", 'create_engine("sqlite://")'), ("PsycopgDualWriter", '""'))
    for which, given in (
        ("neither", ""),
        ("both", ', transactional_id="t", prefix="p"'),
        ("many_of_one", ', transactional_id="t", max_writers=2'),
    )
}
"""Writers that are given no id and no prefix, or both, or one id and a setting of pools."""

SESSIONS: Final = f"""{ENGINE}
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dualwrite import AsyncDualWriter, DualWriter, WriterSettings, dual_write_sessions

settings: WriterSettings = {{"bootstrap_servers": "h:1", "linger_ms": 5}}


class OurSession(Session):
    pass


def integrate(writer: DualWriter) -> None:
    SessionLocal = sessionmaker(engine)
    dual_write_sessions(SessionLocal, writer)
    dual_write_sessions(scoped_session(SessionLocal), writer)
    dual_write_sessions(OurSession, writer)


def integrate_tasks(writer: AsyncDualWriter, sessions: async_scoped_session[AsyncSession]) -> None:
    dual_write_sessions(async_sessionmaker(create_async_engine("sqlite+aiosqlite://")), writer)
    dual_write_sessions(sessions, writer)


integrate(DualWriter(engine, transactional_id="t", **settings))
integrate(DualWriter(engine, prefix="p", max_writers=2, **settings))
"""


@dataclass(frozen=True)
class Sample:
    """A program, under the name of its file."""

    name: str
    code: str


def _completed(code: str) -> str:
    before = next((text for start, text in BEFORE.items() if code.startswith(start)), "")
    packages = "|".join(map(re.escape, UNTYPED + UNTYPED_TOO))
    is_untyped = re.search(rf"^\s*(from|import) ({packages})\b", code, re.MULTILINE)
    return (RELAXED if is_untyped else "") + before + code


def _samples() -> list[Sample]:
    return [
        Sample(f"{page.stem.replace('-', '_').lower()}_{number}", _completed(code))
        for page in PAGES
        for number, code in enumerate(examples(page))
        if not code.startswith(FRAGMENTS)
    ]


SAMPLES: Final = [*_samples(), Sample("sessions_of_a_user", SESSIONS)]
ILL: Final = [
    *(Sample(f"typo_{name}", code) for name, code in TYPOS.items()),
    *(Sample(name, code) for name, code in NEITHER_OR_BOTH.items()),
]

Complaints = dict[str, list[str]]
"""A checker's errors about each program."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("samples")
    for sample in (*SAMPLES, *ILL):
        (made / f"{sample.name}.py").write_text(sample.code)
    return made


@pytest.fixture(scope="module")
def by_mypy(folder: Path) -> Complaints:
    settings = folder / "mypy.ini"
    packages = [f"[mypy-{name}.*]\nignore_missing_imports = true\n" for name in UNTYPED + UNTYPED_TOO]
    settings.write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT}\n" + "".join(packages))
    options = ["--config-file", str(settings), "--cache-dir", str(folder / ".cache"), "--scripts-are-modules"]
    files = sorted(map(str, folder.glob("*.py")))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 1, f"typos are not seen: {done.stdout}{done.stderr}"
    complaints: Complaints = {}
    for line in done.stdout.splitlines():
        if " error: " in line:
            complaints.setdefault(Path(line.partition(":")[0]).stem, []).append(line)
    return complaints


@pytest.fixture(scope="module")
def by_pyright(folder: Path) -> Complaints:
    if find_spec("pyright") is None:
        skip(ServerUnavailableError("pyright is not installed: pip install pyright"))
    if shutil.which("node") is None:
        skip(ServerUnavailableError("pyright needs Node.js, which is not here"))
    settings = {
        "typeCheckingMode": "strict",
        "include": ["."],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "reportMissingImports": False,  # mypy sees those
        "reportMissingModuleSource": False,
        "reportMissingTypeStubs": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    if not done.stdout.lstrip().startswith("{"):
        skip(ServerUnavailableError(f"pyright does not run: {done.stdout}{done.stderr}"))
    complaints: Complaints = {}
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            line = f"{found['range']['start']['line'] + 1}: {found['message']} ({found.get('rule')})"
            complaints.setdefault(Path(found["file"]).stem, []).append(line)
    return complaints


def test_there_are_samples() -> None:
    assert len(SAMPLES) > 60
    for start in (*FRAGMENTS, *BEFORE):
        assert sum(code.startswith(start) for page in PAGES for code in examples(page)) == 1, start


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_mypy_accepts(sample: Sample, by_mypy: Complaints) -> None:
    assert by_mypy.get(sample.name, []) == []


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_pyright_accepts(sample: Sample, by_pyright: Complaints) -> None:
    assert by_pyright.get(sample.name, []) == []


@pytest.mark.parametrize("name", NEITHER_OR_BOTH)
def test_both_type_checkers_see_a_writer_without_exactly_one_of_id_and_prefix(
    name: str, by_mypy: Complaints, by_pyright: Complaints
) -> None:
    assert any("No overload variant" in line for line in by_mypy[name])
    assert any("No overloads for" in line for line in by_pyright[name])


@pytest.mark.parametrize("typo", TYPOS)
def test_both_type_checkers_see_a_typo(typo: str, by_mypy: Complaints, by_pyright: Complaints) -> None:
    (mypy,) = by_mypy[f"typo_{typo}"][:1]
    assert f'"{typo}"' in mypy
    named = (f'"{typo}"', "No overloads for")  # of a writer, pyright shows the types of all arguments instead
    assert any(name in line for line in by_pyright[f"typo_{typo}"] for name in named)
