"""The command that runs an Apache Kafka until it is interrupted."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest

from dualwrite.guarantee import Tier
from tests.support.servers.apache_kafka import run_by_hand

from .clusters import Cluster
from .conftest import NewName
from .reading import create_topics


@pytest.mark.parametrize("cluster", [Tier.BOUNDED], indirect=True, ids=["tier 3"])
def test_the_broker_prints_an_address_and_ends_with_an_interrupt(cluster: Cluster, new_name: NewName) -> None:
    command = [sys.executable, "-m", "tests.support.servers.apache_kafka", "--version", cluster.kafka.version]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            create_topics(process.stdout.readline().strip(), new_name("topic"))
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    output = io.StringIO()
    assert run_by_hand([], output) == 1
    assert output.getvalue() == ""
    assert "needs a Java 17 runtime" in capsys.readouterr().err
