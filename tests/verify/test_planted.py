"""Each anomaly is recognised where it was planted, and by its name."""

from __future__ import annotations

import pytest

from dualwrite.verify.anomalies import Anomaly
from dualwrite.verify.checker import check
from dualwrite.verify.lines import from_lines, to_lines
from tests.verify.planted import BESIDES, PLANTED, Planted

CASES = [
    pytest.param(anomaly, name, planted, id=f"{anomaly.name}: {name}")
    for anomaly, histories in PLANTED.items()
    for name, planted in histories.items()
]


def test_each_anomaly_is_planted_three_times() -> None:
    assert {anomaly: len(PLANTED.get(anomaly, {})) for anomaly in Anomaly if len(PLANTED.get(anomaly, {})) < 3} == {}


@pytest.mark.parametrize(("anomaly", "name", "planted"), CASES)
def test_a_planted_anomaly_is_recognised(anomaly: Anomaly, name: str, planted: Planted) -> None:
    events = planted().events
    report = check(events)
    assert set(report.counts) == {anomaly, BESIDES.get((anomaly, name), anomaly)}, str(report)
    assert check(from_lines(to_lines(events))) == report
