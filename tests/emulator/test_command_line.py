"""If the emulator's process cannot start, it prints the reason in one line and ends with exit status 2."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dualwrite.broker_emulator.process.command_line import main
from tests.support.conditions import until

MODULE = (sys.executable, "-m", "dualwrite.broker_emulator")
CONFORMANCE = (sys.executable, "-m", "dualwrite.testing.conformance", "sqlite://")
EXTRAS_OF_CONFORMANCE = "the tests need the packages of extras: pip install 'dualwrite[pytest,sqlalchemy]'"
EXTRA = "the emulator needs the packages of the extra: pip install 'dualwrite[emulator]'"


def run(*command: str, python_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) if python_path is None else {**os.environ, "PYTHONPATH": str(python_path)}
    root = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment, cwd=root)


def assert_refused(status: int | str | None, output: str, errors: str, said: str) -> None:
    assert (status, output) == (2, "")
    assert errors.startswith("python -m dualwrite.broker_emulator: ")
    assert errors.count("\n") == 1
    assert said in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "127.0.0.1:99999"), "the greatest port is 65535"),
        (("--listen", "127.0.0.1:65535", "--nodes", "2"), "2 nodes from port 65535 on need ports beyond 65535"),
        (("--listen", "127.0.0.1:-1"), "is not host:port"),
        (("--nodes", "0"), "0 is less than 1"),
        (("--nodes", "two"), "'two' is not a whole number"),
        (("--topic", "a@b:1"), "Topic name is invalid: 'a@b' contains"),
        (("--topic", "..:1"), "Topic name is invalid: '..' is not allowed"),
        (("--topic", "orders:0"), "0 is less than 1"),
        (("--topic", "orders:-1"), "-1 is less than 1"),
        (("--add-scram", "alice:"), "expected NAME:PASSWORD"),
        (("--scram-users", "no-such-file"), "no-such-file cannot be read: No such file"),
        (("--config", "listeners=PLAINTEXT:9092"), "'PLAINTEXT:9092' is not NAME://HOST:PORT"),
        (("--config", "listeners=SSL://127.0.0.1:0"), "listener SSL: TLS needs either ssl.keystore.location"),
        (("--config", "num.partitions=0"), "configuration num.partitions: Value must be at least 1"),
        (("--config", "log.retention.ms=-2"), "configuration log.retention.ms: Value must be at least -1"),
        (("--config", "message.max.bytes=-1"), "configuration message.max.bytes: Value must be at least 0"),
        (("--config", "no-such-file"), "neither NAME=VALUE nor a file: no-such-file cannot be read: No such file"),
        (("--config", "process.roles=controller"), "process.roles must include broker"),
        (("--config", "message.max.bytes=many"), "configuration message.max.bytes: Not a number of type INT"),
        (("--clock", "virtual"), "without --control, nothing could advance a virtual clock"),
        (("--clock", "sun"), "'sun' is not one of 'system', 'virtual'"),
        (("--control", "8080"), "'8080' is not host:port"),
        (("--control", "127.0.0.1:99999"), "the greatest port is 65535"),
        (("--control", "a..b:0"), "the control port cannot listen on a..b:0: it is not a valid host name"),
        (("--schema-registry", "8081"), "'8081' is not host:port"),
        (("--schema-registry", "a..b:0"), "the schema registry cannot listen on a..b:0: it is not a valid host name"),
    ],
    ids=" ".join,
)
def test_arguments_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert_refused(ended.value.code, *capsys.readouterr(), said)


def test_an_impossible_host_is_refused() -> None:
    done = run(*MODULE, "--listen", "a..b:0")
    assert_refused(done.returncode, done.stdout, done.stderr, "a..b: invalid host name")


@pytest.mark.parametrize(
    ("option", "said"), [("--listen", "cannot listen on"), ("--control", "the control port cannot listen on")]
)
def test_a_port_that_is_in_use(capsys: pytest.CaptureFixture[str], option: str, said: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemExit) as ended:
            main((option, address))
    assert_refused(ended.value.code, *capsys.readouterr(), f"{said} {address}: address already in use")


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for explanation in (
        "Address of the first node",
        "Number of brokers",
        "Behaviour to imitate",
        "Create this topic",
        "Kafka's name",
        "Serve control over HTTP, and a page",
        "a virtual clock stands still until it is advanced through --control",
    ):
        assert explanation in shown


@pytest.mark.parametrize(
    ("missing", "command", "sentence"),
    [
        *((missing, MODULE, EXTRA) for missing in ("kio", "click")),
        ("h11", (*MODULE, "--control", "127.0.0.1:0"), EXTRA),
        *((missing, CONFORMANCE, EXTRAS_OF_CONFORMANCE) for missing in ("pytest", "sqlalchemy")),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, missing: str, command: tuple[str, ...], sentence: str) -> None:
    cause = f"No module named '{missing}'"
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError({cause!r}, name={missing!r})\n")
    done = run(*command, python_path=tmp_path)
    shown = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(shown)) == (2, "", 1), done.stderr
    assert shown[0].startswith(sentence)
    assert missing in shown[0]


_STARTS_A_BROKER = """
import subprocess, sys
broker = subprocess.Popen(
    [sys.executable, "-m", "dualwrite.broker_emulator", "--stop-with-stdin"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
)
print(broker.stdout.readline(), end="", flush=True)
broker.wait()
"""


def test_a_broker_can_end_with_the_process_that_started_it() -> None:
    """Even if that is killed, and so cannot stop anything."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS_A_BROKER], stdout=subprocess.PIPE, text=True, cwd=root
    ) as suite:
        assert suite.stdout is not None
        host, _, port = suite.stdout.readline().strip().rpartition(":")
        socket.create_connection((host, int(port)), timeout=20).close()
        suite.kill()
    until(lambda: not _is_served(host, int(port)), timeout_s=60)


def _is_served(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=20).close()
    except ConnectionError:
        return False
    return True
