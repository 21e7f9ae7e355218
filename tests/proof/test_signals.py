"""Signals whose handlers raise, at random moments: for a few seconds; `python -m tests.proof.signals` takes longer."""

from __future__ import annotations

from tests.proof.signals import run


def test_signals_at_random() -> None:
    assert run(20, seed=1)
