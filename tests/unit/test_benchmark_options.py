"""`python -m benchmarks.producer` refuses impossible measurements, and judges the others."""

from __future__ import annotations

import pytest

from benchmarks.producer import (
    ONE_PRODUCER,
    options,
    plan_of,
    run,
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rounds", "0"), "'0' is not a whole number of at least 1"),
        (("--rounds", "two"), "'two' is not a whole number of at least 1"),
        (("--duration-s", "0"), "'0' is not a number of at least 0.1 seconds"),
        (("--duration-s", "nan"), "'nan' is not a number of at least 0.1 seconds"),
        (("--duration-s", "inf"), "'inf' is not a number of at least 0.1 seconds"),
    ],
    ids=" ".join,
)
def test_unmeasurable_combinations_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit):
        options().parse_args(arguments)
    assert said in capsys.readouterr().err


def test_one_round_of_our_producers_on_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rounds", "1", "--duration-s", "0.1", "--client", "Producer", "--client", "AsyncProducer"]
    chosen = options().parse_args(arguments)
    run(["emulator"], plan_of([ONE_PRODUCER.name], chosen.client), chosen)
    output = capsys.readouterr().out
    assert "1 of 2: emulator, 1 x 100 B, 1 producer, Producer: " in output
    assert "not measured  emulator: 1 x 100 B, 1 producer, AsyncProducer: at least 2 x confluent-kafka" in output
    assert " ms  emulator: 1 x 100 B, 1 producer, AsyncProducer: p99 below 3 ms" in output
