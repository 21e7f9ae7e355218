"""Producers that start at a given epoch, so that a test can reach the last one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator import Emulator
from tests.emulator.api.raw_client import RawClient, batch_of
from tests.emulator.control.client import Client

LAST = 32766


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(topics={"t": 1}, control="127.0.0.1:0") as emulator:
        yield emulator


def initialised(client: RawClient, transactional_id: str | None = "x") -> tuple[int, int]:
    answer = client.init_producer_id(transactional_id)
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def test_a_known_id_keeps_its_producer_id(emulator: Emulator, client: RawClient) -> None:
    producer_id, epoch = initialised(client)
    assert epoch == 0
    emulator.set_next_producer_epoch(LAST - 1, transactional_id="x")
    assert initialised(client) == (producer_id, LAST - 1)
    assert_goes_on(client, producer_id)


def assert_goes_on(client: RawClient, producer_id: int) -> None:
    """It goes on to the last epoch, and then with another producer id."""
    assert initialised(client) == (producer_id, LAST)
    another_id, epoch = initialised(client)
    assert another_id != producer_id
    assert epoch == 0


def test_the_epoch_survives_a_restart(tmp_path: Path) -> None:
    with Emulator(data_dir=tmp_path / "data") as emulator:
        emulator.set_next_producer_epoch(500, transactional_id="x")
    with Emulator(data_dir=tmp_path / "data") as emulator, RawClient(emulator.bootstrap_servers) as client:
        assert initialised(client)[1] == 500


def test_producers_without_an_id(emulator: Emulator, client: RawClient) -> None:
    emulator.set_next_producer_epoch(LAST)
    first, second = initialised(client, None), initialised(client, None)
    assert first[1] == second[1] == LAST
    assert first[0] != second[0]
    emulator.set_next_producer_epoch(0)
    assert initialised(client, None)[1] == 0
    assert initialised(client)[1] == 0


@pytest.mark.parametrize(("epoch", "transactional_id"), [(0, "x"), (LAST + 1, "x"), (-1, None), (LAST + 1, None)])
def test_epochs_at_which_no_producer_starts(emulator: Emulator, epoch: int, transactional_id: str | None) -> None:
    with pytest.raises(ValueError, match=f"not {epoch}$"):
        emulator.set_next_producer_epoch(epoch, transactional_id=transactional_id)


def test_not_while_a_transaction_is_open(emulator: Emulator, client: RawClient) -> None:
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    with pytest.raises(ValueError, match="the epoch of 'x' cannot be set now: concurrent_transactions"):
        emulator.set_next_producer_epoch(500, transactional_id="x")
    assert client.end_txn("x", producer, commit=True).error_code == 0


def test_over_http(emulator: Emulator, client: RawClient) -> None:
    control = Client(emulator.control_url)
    body = {"producer_epoch": 500, "transactional_id": "x"}
    assert control.post("/v1/producer-epoch", body) == body
    assert initialised(client)[1] == 500
    assert "at most" in control.refused(400, "POST", "/v1/producer-epoch", {"producer_epoch": LAST + 1})["message"]
    refused = control.refused(409, "POST", "/v1/producer-epoch", {"producer_epoch": 0, "transactional_id": "x"})
    assert "can start at the epochs 1 to 32766, not 0" in refused["message"]
