"""Any bytes: other clients are served, no bug is logged, and responses carry the right correlation ids.

`HYPOTHESIS_EXAMPLES=20000 pytest tests/emulator/hostile/test_fuzz.py` looks longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.emulator.hostile.requests import damaged_frames, sized, valid_frames
from tests.emulator.hostile.victim import Victim, correlation_ids_sent, is_subsequence

pytestmark = pytest.mark.timeout(0 if "HYPOTHESIS_EXAMPLES" in os.environ else 120)
EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "400"))
looking = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="HYPOTHESIS_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with Victim() as attacked:
        yield attacked


def attack(victim: Victim, data: bytes) -> None:
    answered = victim.attack(data)
    victim.check()
    assert is_subsequence(answered, correlation_ids_sent(data))


@looking
@given(valid_frames())
def test_strange_contents(victim: Victim, data: bytes) -> None:
    attack(victim, data)


@looking
@given(damaged_frames())
def test_damaged_frames(victim: Victim, data: bytes) -> None:
    attack(victim, data)


@looking
@given(st.lists(st.one_of(valid_frames(), damaged_frames()), min_size=2, max_size=6).map(b"".join))
def test_several_frames_at_once(victim: Victim, data: bytes) -> None:
    attack(victim, data)


@looking
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(sized)))
def test_noise(victim: Victim, data: bytes) -> None:
    attack(victim, data)


@settings(looking, max_examples=max(EXAMPLES // 40, 10))
@given(valid_frames())
def test_a_frame_cut_at_every_byte(victim: Victim, data: bytes) -> None:
    for end in range(len(data)):
        assert victim.attack(data[:end]) == []
    victim.check()
