"""A long run: processes that end, its output, and its exit status."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from tests.differential.__main__ import play
from tests.differential.explained import EXPLANATIONS
from tests.differential.logs import INTERNAL_PARTITIONS
from tests.interop.differences import DIFFERENCES

CONFIG = BrokerConfig(
    profile=Profile.KAFKA_4_3,
    transaction_state_log_num_partitions=INTERNAL_PARTITIONS,
    offsets_topic_num_partitions=INTERNAL_PARTITIONS,
)


def test_a_run_goes_on_after_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(seed=7, first=0, sequences=12, seconds=0, workers=2, shrink=1)
    with Emulator(config=CONFIG) as one, Emulator(config=replace(CONFIG, transaction_max_timeout_ms=1_000)) as other:
        assert play(options, (one.bootstrap_servers, other.bootstrap_servers), lambda: None) == 1
    printed = capsys.readouterr().out
    assert "seed 7: 12 sequences in" in printed
    counts = re.findall(r"^ +(\d+) init_producer_id.error_code 0 / 50 \(7:", printed, re.MULTILINE)
    assert [int(times) > 1 for times in counts] == [True]


def test_every_explained_difference_is_on_its_page() -> None:
    assert {each.row for each in EXPLANATIONS} <= {row for rows in DIFFERENCES.values() for row in rows}
