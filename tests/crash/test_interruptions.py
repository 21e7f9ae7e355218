"""A dual write that is interrupted, dropped, left open at exit, forked, or refused by Kafka after it was decided."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest

from dualwrite.outcome import Outcome
from dualwrite.recipes.writer import _AsyncScope, _BlockingScope
from tests.crash.scenario import Scenario
from tests.support.conditions import until
from tests.support.topics import read_topic

SECONDS_TO_END = 300  # a wait for Kafka would last an hour


@pytest.mark.parametrize("kind", [_BlockingScope, _AsyncScope])
def test_a_block_whose_making_was_interrupted_is_collected_without_an_error(kind: type[Any]) -> None:
    block: Any = object.__new__(kind)
    block.__del__()


def test_a_block_that_is_dropped_is_rolled_back(scenario: Scenario) -> None:
    with scenario.writer() as writer:
        block = writer.transaction()
        tx = block.__enter__()
        tx.send(scenario.topic, value="1")
        del block

        def is_rolled_back() -> bool:  # a thread that has just answered may hold the block a little longer
            gc.collect()
            return tx.outcome is Outcome.ROLLED_BACK

        until(is_rolled_back)
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


_LEAVES_A_BLOCK_OPEN = """
import sys, sqlalchemy as sa
from dualwrite import DualWriter, PsycopgDualWriter
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import make
url = sa.make_url(sys.argv[1])
if sys.argv[5] == "PsycopgScenario":
    writer = make(PsycopgDualWriter, conninfo_of(url), sys.argv[2], sys.argv[3], max_block_ms=3_600_000)
else:
    writer = make(DualWriter, sa.create_engine(url), sys.argv[2], sys.argv[3], max_block_ms=3_600_000)
with writer.transaction() as tx:
    tx.send(sys.argv[4], value="0")
block = writer.transaction()
block.__enter__().send(sys.argv[4], value="1")
"""


def test_a_process_that_ends_inside_a_block_ends_at_once(scenario: Scenario) -> None:
    """The clean-up cannot wait for Kafka: the thread that would carry the response has been stopped."""
    subprocess.run(
        [
            *(sys.executable, "-c", _LEAVES_A_BLOCK_OPEN),
            scenario.database.url.render_as_string(hide_password=False),
            scenario.emulator.bootstrap_servers,
            scenario.transactional_id,
            scenario.topic,
            type(scenario).__name__,
        ],
        timeout=SECONDS_TO_END,
        check=True,
        capture_output=True,
    )
    with scenario.writer() as writer:
        assert writer.recover() == []
    assert read_topic(scenario.emulator.bootstrap_servers, scenario.topic) == [("", "0")]
    scenario.assert_nothing_open()
