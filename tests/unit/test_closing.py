"""The log messages about a producer that is closed too early."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dualwrite.client.transactions.states import ProducerState
from dualwrite.client.unfinished_on_close import unfinished_on_close
from dualwrite.config import ProducerConfig
from dualwrite.prepared_state import PreparedTxnState

S = ProducerState
NOTHING = PreparedTxnState()
PREPARED = PreparedTxnState("42:7")


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig.parse(None, {"bootstrap_servers": "h:1", "transactional_id": "orders-1"} | settings)


@pytest.mark.parametrize("state", list(S))
def test_nothing_is_logged_where_nothing_is_left(state: ProducerState) -> None:
    """A transaction without records can be prepared, too; then there is nothing to complete."""
    assert unfinished_on_close(state, NOTHING, config(), pending=False) is None


def test_handed_over_connections_cause_no_warning() -> None:
    for hand_over, level in ((False, logging.WARNING), (True, logging.DEBUG)):
        left = unfinished_on_close(S.PREPARED_TRANSACTION, PREPARED, config(), pending=False, hand_over=hand_over)
        assert left is not None
        assert left.level == level


def test_records_without_an_answer() -> None:
    left = unfinished_on_close(S.READY, NOTHING, config(transactional_id=None), pending=True)
    assert left is not None
    assert "the futures of the others raise an error" in left.message
