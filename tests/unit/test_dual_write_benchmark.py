"""`python -m benchmarks.dual_write`: its verdicts, and one tiny round of its measurements."""

from __future__ import annotations

import pytest

from benchmarks import stored_blocks
from benchmarks.clients import Done
from benchmarks.dual_write import (
    Measured,
    options,
    run,
    together,
    verdict_rate,
    verdict_readable,
    verdict_sequence,
    verdict_sum,
    verdicts,
)
from benchmarks.dual_write_ways import DATABASE, DUAL, KAFKA, OUTBOX, SEQUENCE, Written


def measured(rate: float = 1.0, p50_ms: float = 1.0, readable_ms: float = 1.0) -> Measured:
    return Measured(Done(rate, rate, p50_ms, p50_ms, 1.0), [readable_ms, readable_ms])


@pytest.mark.parametrize(("dual_ms", "said"), [(2.3, "reached: 1.15 x"), (2.4, "MISSED: 1.20 x")])
def test_the_latency_goes_by_the_two_sides_alone_and_in_turns(dual_ms: float, said: str) -> None:
    rounds = {DUAL: [measured(p50_ms=dual_ms)], DATABASE: [measured()], KAFKA: [measured()]}
    assert verdict_sum(rounds).startswith(said)
    assert verdict_sequence({**rounds, SEQUENCE: [measured(p50_ms=2)]}).startswith(said)


def test_the_rate_goes_by_the_median_of_the_ratios_of_the_rounds() -> None:
    rounds = {
        DUAL: [measured(8), measured(1), measured(9)],
        OUTBOX: [measured(10), measured(10), measured(10)],
    }
    assert verdict_rate(8, rounds).startswith("reached: 0.80 x  8 workers")
    rounds[DUAL] = [measured(7)] * 3
    assert verdict_rate(8, rounds).startswith("MISSED: 0.70 x  8 workers")


@pytest.mark.parametrize(("dual_ms", "said"), [(1.9, "reached: 1.90 ms"), (2.0, "MISSED: 2.00 ms")])
def test_a_record_has_to_be_readable_before_the_outboxs(dual_ms: float, said: str) -> None:
    rounds = {DUAL: [measured(readable_ms=dual_ms)], OUTBOX: [measured(readable_ms=2)]}
    assert verdict_readable(32, rounds).startswith(said)


def test_one_round_of_the_outbox_and_of_dual_writes(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options().parse_args(["--rounds", "1", "--duration-s", "0.1", "--way", OUTBOX, "--way", DUAL])
    run(chosen.way, [8], chosen)
    output = capsys.readouterr().out
    assert f"1 of 2: 8 workers, {OUTBOX}: " in output
    assert "8 workers: dual writes per second at least 0.8 x the outbox's" in output
    assert "8 workers: from the end of the block until readable, below the outbox's" in output


def test_a_dual_write_is_compared_with_the_outbox_of_its_own_style_and_with_sqlalchemys() -> None:
    rounds = {
        "psycopg: dual write, pool": [measured(8)],
        "psycopg: outbox with relay": [measured(20)],
        OUTBOX: [measured(10)],
    }
    said = [line for line in verdicts({8: rounds}) if "per second" in line]
    assert [line.partition("x ")[0] for line in said] == ["MISSED: 0.40 ", "reached: 0.80 "]
    assert [line.partition("  [")[2] for line in said] == [
        "psycopg: dual write, pool | psycopg: outbox with relay]",
        f"psycopg: dual write, pool | {OUTBOX}]",
    ]


def test_processes_share_the_workers_and_their_rates_add_up() -> None:
    each = Written(Done(10.0, 10.0, 2.0, 4.0, 1.0), {"a/0": 1.0})
    both = together([each, Written(Done(20.0, 20.0, 4.0, 6.0, 3.0), {"b/0": 2.0})])
    assert both == Written(Done(30.0, 30.0, 3.0, 5.0, 2.0), {"a/0": 1.0, "b/0": 2.0})


def test_the_pools_in_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    ways = ["psycopg: dual write, pool", "asyncio: dual write, pool"]
    options_given = ["--rounds", "1", "--duration-s", "0.1", "--way", ways[0], "--way", ways[1], "--processes", "2"]
    chosen = options().parse_args(options_given)
    run(chosen.way, [8], chosen)
    output = capsys.readouterr().out
    assert all(f"8 workers, {way}: " in output for way in ways)


def test_one_round_of_what_storing_costs(capsys: pytest.CaptureFixture[str]) -> None:
    options_given = ["--rounds", "1", "--duration-s", "0.3", "--workers", "2", "--style", "psycopg"]
    stored_blocks.run(stored_blocks.options().parse_args(options_given))
    output = capsys.readouterr().out
    for way in stored_blocks.WAYS:
        assert f"of {len(stored_blocks.WAYS)}: psycopg, 2 workers, {way}: " in output
        assert way == stored_blocks.PLAIN or f"{way}, as a multiple of dual write: writes/s" in output
