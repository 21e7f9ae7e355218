"""The transcripts in `tests/emulator/security/login_cases.py` are those of a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.emulator.api.raw_client import RawClient
from tests.emulator.security.login_cases import BRIEF_MS, CASES, LISTENERS, PROPERTIES, SCRAM_USERS
from tests.emulator.security.login_script import LoginScript
from tests.interop.conftest import start
from tests.support.servers.apache_kafka import ApacheKafka


@pytest.fixture(scope="module")
def apache_kafka_with_logins() -> Iterator[ApacheKafka]:
    kafka = ApacheKafka(listeners=LISTENERS, scram_users=SCRAM_USERS, properties=PROPERTIES)
    for _ in start(kafka):
        yield kafka


@pytest.fixture(scope="module")
def transcripts(apache_kafka_with_logins: ApacheKafka) -> dict[str, list[str]]:
    """The transcripts of all scripts, played at the same time: some wait for the end of a session."""

    def transcript(name: str) -> list[str]:
        listener, run, _ = CASES[name]
        with RawClient(apache_kafka_with_logins.address(listener)) as client:
            script = LoginScript(client, time.time, lambda: time.sleep(BRIEF_MS / 1000 + 0.1))
            run(script)
            return script.transcript

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(CASES, pool.map(transcript, CASES), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_every_login_is_answered_as_the_table_says(transcripts: dict[str, list[str]], name: str) -> None:
    assert transcripts[name] == CASES[name].transcript
