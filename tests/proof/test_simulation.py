"""Simulations of whole systems: 500 seeds in `make test`, more in `make proof`; and that they find what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from tests.proof.simulate import results
from tests.proof.simulation.planted import MISTAKES

SEEDS_OF_TEST: Final = 500
SEEDS_OF_PROOF: Final = 5_000
_PARTS: Final = 10

FAILED_ONCE: Final[tuple[int, ...]] = ()
"""Seeds that stood for mistakes which are corrected."""


def _failures(seeds: range) -> dict[int, list[str]]:
    return {result.seed: result.problems for result in results(seeds) if result.problems}


def _simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.proof.simulate", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("part", range(_PARTS))
def test_nothing_goes_wrong(part: int) -> None:
    size = SEEDS_OF_TEST // _PARTS
    assert _failures(range(part * size, (part + 1) * size)) == {}


@pytest.mark.proof
@pytest.mark.parametrize("part", range(_PARTS))
def test_nothing_goes_wrong_for_long(part: int) -> None:
    size = (SEEDS_OF_PROOF - SEEDS_OF_TEST) // _PARTS
    first = SEEDS_OF_TEST + part * size
    assert _failures(range(first, first + size)) == {}


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_what_failed_once_does_not_fail_again(seed: int) -> None:
    assert _failures(range(seed, seed + 1)) == {}


@pytest.mark.proof
def test_a_seed_has_one_history() -> None:
    histories = {
        _simulate("--seeds", "0-40", "--trace", hash_seed=str(each)).stdout.rsplit("\n", 2)[0] for each in (0, 1, 4711)
    }
    assert len(histories) == 1
    (history,) = histories
    assert history.endswith(_simulate("--seed", "40", "--trace").stdout.rsplit("\n", 2)[0])


@pytest.mark.proof
@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str) -> None:
    seed = str(MISTAKES[name].found_by)
    found = _simulate("--seed", seed, "--planted", name)
    assert found.stdout.startswith(f"seed {seed}: "), found.stdout + found.stderr
