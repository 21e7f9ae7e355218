"""The public names of `spark_sink`, and which modules its imports load."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

import spark_sink
from spark_sink import errors
from spark_sink.face import DualWriteKafka, StreamWriter
from spark_sink.handoff import Plan
from spark_sink.options import parse

ROOT = Path(__file__).parents[2]
HEAVY = ("pyspark", "pyarrow", "sqlalchemy", "kafka")
OF_THE_PRODUCER = ("aiokafka", "dualwrite.producer", "kafka", "pyarrow")
OF_THE_DRIVER = (
    "dualwrite.admin",
    "dualwrite.async_producer",
    "dualwrite.recipes.core.buffer",
    "dualwrite.recipes.sqlalchemy.transaction",
    "spark_sink.driver.completion",
    "spark_sink.driver.recovery",
    "sqlalchemy.orm",
)
OF_OTHERS = ("confluent_kafka", "grpc", "pandas", "spark_sink.reading.source", "spark_sink.store.dual_table")
"""The modules that delay the first task of a Python worker most."""


def loaded_by(code: str, names: tuple[str, ...]) -> str:
    """Run `code` in a new process, and return which of the modules `names` it has loaded, as a list's text."""
    code = f"import sys\n{code}\nprint([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_by("import spark_sink, spark_sink.errors", HEAVY) == "[]"


def test_a_task_loads_only_modules_that_it_needs() -> None:
    """A Python worker unpickles the writer for its first task. If there are rows, it opens a Kafka transaction."""
    given = {"sinkId": "s", "kafka.bootstrap.servers": "h:1", "commitStore.url": "sqlite:////f", "topic": "t"}
    writer = pickle.dumps(StreamWriter(parse(given), DualWriteKafka.open_sink, Plan("s", 1)))
    unpickle = f"import pickle; pickle.loads({writer!r})"
    write = "import spark_sink.attempt.task_transaction"
    assert loaded_by(unpickle, OF_THE_PRODUCER + OF_THE_DRIVER + OF_OTHERS) == "[]"
    assert loaded_by(f"{unpickle}; {write}", OF_THE_DRIVER + OF_OTHERS) == "[]"


def test_a_task_of_the_source_loads_no_library_before_it_reads() -> None:
    libraries = ("aiokafka", "confluent_kafka", "dualwrite.admin", "dualwrite.producer", "kafka", "sqlalchemy")
    assert loaded_by("import spark_sink.reading.source", libraries) == "[]"


def test_every_public_name_is_there() -> None:
    for name in spark_sink.__all__:
        assert getattr(spark_sink, name).__name__.lower().endswith(name.lower())
    assert set(spark_sink.__all__) <= set(dir(spark_sink))


def test_every_error_can_be_caught_by_its_public_name() -> None:
    raised = {name: error for name, error in vars(errors).items() if name.endswith("Error")}
    del raised["DualWriteError"]
    assert {name: getattr(spark_sink, name, None) for name in raised} == raised


def test_the_extra_has_the_packages_that_pyspark_needs_for_arrow() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "dualwrite[spark-cluster]" in extras["spark"]
    found = [requirement for extra in ("spark", "spark-cluster", "arrow") for requirement in extras[extra]]
    named = {re.split(r"[^a-z0-9-]", requirement)[0] for requirement in found}
    assert named >= {"pyspark", "pandas", "pyarrow"}, "mapInArrow refuses to run without pandas"


def test_the_oldest_supported_spark_has_every_name_that_the_source_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    of_spark = {requirement for extra in ("spark", "dev") for requirement in extras[extra] if "pyspark" in requirement}
    assert of_spark == {"pyspark>=4.2,<5", "pyspark[connect]>=4.2,<5"}, "4.1 has no pyspark.sql.streaming.datasource"
    assert "pandas>=2.2,<3" in extras["spark-cluster"], "of pandas 3, PySpark warns"
    assert "OLDEST_SPARK := 4.2.0\n" in (ROOT / "Makefile").read_text(), "`make test-spark-floor` runs with it"


def test_private_names_are_not_exported() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Flink'"):
        spark_sink.Flink  # noqa: B018 - asking is the test


def test_workers_of_another_python_are_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark uses `python3` on the PATH, which is another Python if the environment is not activated."""
    from spark_sink.face import warn_of_another_python

    another = tmp_path / "python3"
    another.write_text("")
    another.chmod(0o755)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_another_python(sys.executable)
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
        warn_of_another_python("python3")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(UserWarning, match=f"which is {another}.*PYSPARK_PYTHON"):
        warn_of_another_python("python3")
