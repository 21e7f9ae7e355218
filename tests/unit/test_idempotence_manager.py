"""The producer id of an idempotent producer without transactions, event by event."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dualwrite.client import messages as m
from dualwrite.client.idempotence_manager import IdempotenceManager
from dualwrite.client.pacing import Backoff
from dualwrite.client.transactions.states import ProducerState
from dualwrite.errors import DeliveryError, FatalError, UnsupportedByBrokerError

LOST = DeliveryError("lost")


def manager() -> IdempotenceManager:
    return IdempotenceManager(enabled=True, backoff=Backoff(100, 1000))


def ready(epoch: int = 0) -> IdempotenceManager:
    made = manager()
    assert made.poll(0, delivered=False) is not None
    made.on_response(m.InitProducerIdResponse(0, 42, epoch), 0)
    return made


def test_a_gap_raises_the_epoch() -> None:
    made = ready()
    made.fail_abortable(LOST)
    assert made.may_produce
    assert (made.producer_id, made.producer_epoch) == (42, 1)


def test_without_a_producer_id_there_is_no_epoch_to_raise() -> None:
    made = IdempotenceManager(enabled=False, backoff=Backoff(100, 1000))
    made.fail_abortable(LOST)
    assert made.may_produce
    assert (made.producer_id, made.producer_epoch) == (-1, -1)


def test_at_the_epoch_limit_a_new_id_is_fetched() -> None:
    made = ready(epoch=32767)
    made.fail_abortable(LOST)
    assert made.poll(0, delivered=False) is not None
    assert not made.may_produce


def test_lost_and_retriable_responses_are_requested_again() -> None:
    made = manager()
    losses: tuple[Callable[[], object], ...] = (
        lambda: made.on_no_response(0),
        lambda: made.on_response(m.InitProducerIdResponse(14), 0),
    )
    for lose in losses:
        assert made.poll(5000, delivered=False) is not None
        lose()
        assert made.poll(50, delivered=False) is None
        assert made.retry_at_ms is not None


def test_refusals_end_the_producer() -> None:
    made = manager()
    made.poll(0, delivered=False)
    made.on_response(m.InitProducerIdResponse(31), 0)
    assert made.state is ProducerState.FATAL_ERROR
    assert made.drops_unsent
    with pytest.raises(FatalError, match="31"):
        made.check_send()


def test_an_old_broker_ends_the_producer() -> None:
    made = manager()
    made.poll(0, delivered=False)
    made.on_unsupported(UnsupportedByBrokerError("too old"))
    with pytest.raises(UnsupportedByBrokerError, match="too old"):
        made.check_send()
