"""Brokers start with the class-data archive of Kafka if there is one for their Java and their jars."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.servers.cache import CACHE_VARIABLE
from tests.support.servers.kafka_classes import CLASSES_FILE, classes_name, classes_options


@pytest.fixture
def java(tmp_path: Path) -> str:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17"')
    return str(program)


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    made = tmp_path / "kafka-4.4.0"
    made.mkdir()
    return made


def test_it_is_used_where_it_is_there(tmp_path: Path, java: str, jars: Path) -> None:
    assert classes_options(java, jars) == ()
    file = tmp_path / classes_name(java, jars) / CLASSES_FILE
    file.parent.mkdir()
    file.touch()
    assert f"-XX:SharedArchiveFile={file}" in classes_options(java, jars)


def test_another_java_or_other_jars_need_another_one(tmp_path: Path, java: str, jars: Path) -> None:
    names = {classes_name(java, jars)}
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21"')
    names.add(classes_name(java, jars))
    os.utime(jars, ns=(0, 0))  # fetched anew
    names.add(classes_name(java, jars))
    assert len(names) == 3
