"""Blocks that lock the same row are published in the order of their commits, through outages of Kafka."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.proof.diversion import Guards, search, without


@pytest.mark.parametrize(("blocks", "outages", "kills"), [(2, 2, 1), (3, 1, 1), (3, 2, 0)])
def test_no_history_loses_the_order(blocks: int, outages: int, kills: int) -> None:
    found = search(Guards(), blocks, outages=outages, kills=kills)
    assert found.wrong is None, found.story
    assert found.at_rest > 0


@pytest.mark.parametrize("name", [field.name for field in fields(Guards)])
def test_each_guard_is_needed(name: str) -> None:
    assert search(without(name), 3, outages=2).wrong is not None
