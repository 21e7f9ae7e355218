"""The benchmarks of producers and of dual writes: one tiny round of each measurement."""

from __future__ import annotations

import pytest

from benchmarks import producer, stored_blocks
from benchmarks.clients import Done
from benchmarks.dual_write import (
    options,
    run,
    together,
)
from benchmarks.dual_write_ways import DUAL, OUTBOX, Written


def test_one_round_of_our_producers_on_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rounds", "1", "--duration-s", "0.1", "--client", "Producer", "--client", "AsyncProducer"]
    chosen = producer.options().parse_args(arguments)
    producer.run(["emulator"], producer.plan_of([producer.ONE_PRODUCER.name], chosen.client), chosen)
    output = capsys.readouterr().out
    assert "1 of 2: emulator, 1 x 100 B, 1 producer, Producer: " in output
    assert "not measured  emulator: 1 x 100 B, 1 producer, AsyncProducer: at least 2 x confluent-kafka" in output
    assert " ms  emulator: 1 x 100 B, 1 producer, AsyncProducer: p99 below 3 ms" in output


def test_one_round_of_the_outbox_and_of_dual_writes(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options().parse_args(["--rounds", "1", "--duration-s", "0.1", "--way", OUTBOX, "--way", DUAL])
    run(chosen.way, [8], chosen)
    output = capsys.readouterr().out
    assert f"1 of 2: 8 workers, {OUTBOX}: " in output
    assert "8 workers: dual writes per second at least 0.8 x the outbox's" in output
    assert "8 workers: from the end of the block until readable, below the outbox's" in output


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


def test_one_round_of_the_cost_of_storing(capsys: pytest.CaptureFixture[str]) -> None:
    options_given = ["--rounds", "1", "--duration-s", "0.3", "--workers", "2", "--style", "psycopg"]
    stored_blocks.run(stored_blocks.options().parse_args(options_given))
    output = capsys.readouterr().out
    for way in stored_blocks.WAYS:
        assert f"of {len(stored_blocks.WAYS)}: psycopg, 2 workers, {way}: " in output
        assert way == stored_blocks.PLAIN or f"{way}, as a multiple of dual write: writes/s" in output
