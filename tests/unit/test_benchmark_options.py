"""`python -m benchmarks.producer` refuses impossible measurements, and judges the others."""

from __future__ import annotations

import pytest

from benchmarks.clients import Done
from benchmarks.producer import (
    BARS,
    ONE_PRODUCER,
    in_turn,
    options,
    plan_of,
    run,
    verdict,
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
def test_what_cannot_be_measured_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit):
        options().parse_args(arguments)
    assert said in capsys.readouterr().err


def test_another_client_begins_in_each_round() -> None:
    assert [in_turn(["a", "b", "c"], number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert in_turn([], 1) == []


def done(rate: float, p99_ms: float = 1.0) -> Done:
    return Done(rate, rate, p99_ms / 2, p99_ms, 1.0)


def test_a_verdict_goes_by_the_median_of_the_ratios_of_the_rounds() -> None:
    bar = BARS[0]
    ours, theirs = [done(30), done(50), done(10)], [done(10), done(10), done(10)]
    measured = {("emulator", bar.workload.name): {bar.client: ours, "confluent-kafka": theirs}}
    assert verdict(bar, "emulator", measured).startswith("reached: 3.00 x  emulator: ")
    measured = {("emulator", bar.workload.name): {bar.client: theirs, "confluent-kafka": ours}}
    assert verdict(bar, "emulator", measured).startswith("MISSED: 0.33 x  emulator: ")
    assert verdict(bar, "emulator", {}).startswith("not measured")


def test_a_verdict_about_latency_needs_no_other_client() -> None:
    bar = next(bar for bar in BARS if bar.p99_ms is not None)
    for p99_ms, said in ((2.9, "reached: 2.90 ms"), (3.1, "MISSED: 3.10 ms")):
        measured = {("emulator", bar.workload.name): {bar.client: [done(1, p99_ms)]}}
        assert verdict(bar, "emulator", measured).startswith(said)


def test_one_round_of_our_producers_on_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rounds", "1", "--duration-s", "0.1", "--client", "Producer", "--client", "AsyncProducer"]
    chosen = options().parse_args(arguments)
    run(["emulator"], plan_of([ONE_PRODUCER.name], chosen.client), chosen)
    output = capsys.readouterr().out
    assert "1 of 2: emulator, 1 x 100 B, 1 producer, Producer: " in output
    assert "not measured  emulator: 1 x 100 B, 1 producer, AsyncProducer: at least 2 x confluent-kafka" in output
    assert " ms  emulator: 1 x 100 B, 1 producer, AsyncProducer: p99 below 3 ms" in output
