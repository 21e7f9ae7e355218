"""Race 9: a transactional id expires while its producer initialises: 51 until the tombstone is written, then new."""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator import PausePoint
from tests.emulator.races.racers import Racer, completion, racing
from tests.support.conditions import until

CONCURRENT, UNKNOWN_MAPPING = 51, 49
WEEK_MS = 604_800_000


def pair(answer: Any) -> dict[str, int]:
    """The identity that a producer expects to keep (KIP-360)."""
    return {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


def test_expiry_is_first() -> None:
    with racing() as emulator:
        racer = Racer(emulator)
        before = racer.init()
        tombstone = emulator.hold(PausePoint.BEFORE_TOMBSTONE_APPEND)
        emulator.advance_clock(WEEK_MS + 3_600_000)
        tombstone.wait_reached()
        assert racer.init().error_code == CONCURRENT
        assert racer.produce(sequence=0) == CONCURRENT
        assert emulator.transactions() == []  # on its way out
        tombstone.release()
        racer.producer = None
        until(lambda: racer.init(**pair(before)).error_code != CONCURRENT)
        assert racer.producer.producer_id != before.producer_id
        assert racer.producer.producer_epoch == 0


def test_initialisation_is_first() -> None:
    with racing() as emulator:
        racer = Racer(emulator)
        before = racer.init()
        append = emulator.hold(PausePoint.BEFORE_STATE_APPEND)
        again = racer.send_init()
        append.wait_reached()
        emulator.advance_clock(WEEK_MS + 3_600_000)  # the sweep finds the id pending and leaves it
        append.release()
        answer = racer.receive_init(again)
        assert (answer.producer_id, answer.producer_epoch) == (before.producer_id, before.producer_epoch + 1)


def test_an_expired_id_is_unknown_to_its_producer() -> None:
    with racing() as emulator:
        racer = Racer(emulator)
        racer.init()
        assert racer.write() == 0
        completed = completion(emulator)
        assert racer.end(commit=True) == 0
        completed.wait()
        emulator.advance_clock(WEEK_MS + 3_600_000)
        until(lambda: emulator.transactions() == [])
        assert racer.end(commit=True) == UNKNOWN_MAPPING
        assert racer.produce() == UNKNOWN_MAPPING
