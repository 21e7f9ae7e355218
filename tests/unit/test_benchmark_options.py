"""`python -m benchmarks` refuses what cannot be measured, and shows where it is without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.__main__ import _parser, show_progress


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rounds", "0"), "'0' is not a whole number from 1 on"),
        (("--rounds", "-1"), "'-1' is not a whole number from 1 on"),
        (("--rounds", "two"), "'two' is not a whole number from 1 on"),
        (("--duration-s", "-1"), "'-1' is not a number of seconds from 0.1 on"),
        (("--duration-s", "0"), "'0' is not a number of seconds from 0.1 on"),
        (("--duration-s", "nan"), "'nan' is not a number of seconds from 0.1 on"),
        (("--duration-s", "inf"), "'inf' is not a number of seconds from 0.1 on"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_measured_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(arguments)
    assert said in capsys.readouterr().err


def test_a_line_per_measurement_without_a_terminal() -> None:
    output = io.StringIO()
    with show_progress(Console(file=output), "one record", total=2) as measured:
        measured("dualwrite", 1234.5)
        measured("other", 10)
    assert output.getvalue() == "one record: 1 of 2, dualwrite: 1,234\none record: 2 of 2, other: 10\n"
