"""A short attack in every run of the tests, a longer one in `make proof`, and the fuzzer's own promises."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fuzz.broker import FuzzedBroker, NotOpenedError
from tests.fuzz.campaign import Campaign, Limits
from tests.fuzz.captures import kept_captures
from tests.fuzz.cases import make_case, read_cases

SEED = 20_261_123


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cases", [100, pytest.param(1_500, marks=pytest.mark.proof)])
def test_nothing_goes_wrong(tmp_path: Path, cases: int) -> None:
    result = Campaign(SEED, Limits(), tmp_path).run(240, cases)
    assert result.failures == []
    assert result.cases == cases


def test_a_failure_is_kept_and_can_be_replayed(tmp_path: Path) -> None:
    """The first case exceeds an impossible limit, and the file has it as it was sent."""
    told: list[str] = []
    campaign = Campaign(SEED, Limits(stall_s=-1.0), tmp_path, told.append)
    (failure,) = campaign.run(60, 1).failures
    (kept,) = read_cases(failure.path)
    case = make_case(SEED, 0, kept_captures())
    assert kept.entrance is case.entrance
    assert set(kept.frames) <= set(case.frames)
    assert told == [f"{failure.path}: {failure.title}"]
    assert "a client beside it waited" in failure.what
    assert campaign.replay([kept]) is not None
    assert Campaign(SEED, Limits(), tmp_path).replay([kept]) is None


def test_a_directory_that_does_not_open_is_noticed() -> None:
    with FuzzedBroker() as broker:
        broker.kill()
        shutil.rmtree(broker.data)
        broker.data.write_bytes(b"this is no directory")
        with pytest.raises(NotOpenedError):
            broker.start()
