"""The command line options of the control port."""

from __future__ import annotations

import socket

import pytest

from dualwrite.broker_emulator.process.command_line import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--clock", "virtual"), "without --control, nothing could advance a virtual clock"),
        (("--clock", "sun"), "'sun' is not one of 'system', 'virtual'"),
        (("--control", "8080"), "'8080' is not host:port"),
        (("--control", "127.0.0.1:99999"), "the greatest port is 65535"),
        (("--schema-registry", "8081"), "'8081' is not host:port"),
        (("--schema-registry", "a..b:0"), "the schema registry cannot listen on a..b:0: it is not a valid host name"),
        (("--control", "a..b:0"), "the control port cannot listen on a..b:0: it is not a valid host name"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal(capsys, *arguments)


def test_a_port_that_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"the control port cannot listen on {address}: address already in use" in refusal(
            capsys, "--control", address
        )


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the line that is printed before the process exits with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output, errors = capsys.readouterr()
    assert (ended.value.code, output, errors.count("\n")) == (2, "", 1)
    return errors


def test_the_options_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Serve control over HTTP, and a page" in shown
    assert "a virtual clock stands still until it is advanced through --control" in shown
