"""Which quota applies to a client, and that quotas survive a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.quotas.client_quotas import (
    CLIENT_ID,
    IP,
    USER,
    ClientQuotas,
    Limit,
    Quota,
    entity,
)
from dualwrite.broker_emulator.storage.storage import MemoryOnly
from tests.emulator.inside import cluster_of

RATE = Quota.PRODUCER_BYTE_RATE
BOTH, OF_USER, OF_CLIENT = ("alice", "app"), ("alice", ""), ("", "app")

BY_PRECEDENCE: list[tuple[dict[str, str | None], tuple[str, str]]] = [
    ({USER: "alice", CLIENT_ID: "app"}, BOTH),
    ({USER: "alice", CLIENT_ID: None}, BOTH),
    ({USER: "alice"}, OF_USER),
    ({USER: None, CLIENT_ID: "app"}, BOTH),
    ({USER: None, CLIENT_ID: None}, BOTH),
    ({USER: None}, OF_USER),
    ({CLIENT_ID: "app"}, OF_CLIENT),
    ({CLIENT_ID: None}, OF_CLIENT),
]
"""The most specific first (KIP-55), each with the usage that is counted together."""


@pytest.fixture
def quotas() -> ClientQuotas:
    return ClientQuotas(MemoryOnly(1))


def test_the_most_specific_quota_counts(quotas: ClientQuotas) -> None:
    for bound, (named, (user, client_id)) in enumerate(reversed(BY_PRECEDENCE), start=1):
        quotas.alter(entity(named.items()), {RATE: float(bound)})
        assert quotas.limit(RATE, "alice", "app") == Limit(bound, user, client_id)
    assert quotas.limit(Quota.CONSUMER_BYTE_RATE, "alice", "app") is None
    assert quotas.limit(RATE, "bob", "other") == Limit(4.0, "bob", "other")  # the defaults of both together


def test_addresses(quotas: ClientQuotas) -> None:
    assert quotas.connection_rate("127.0.0.1") is None
    quotas.alter(entity({IP: None}.items()), {Quota.CONNECTION_CREATION_RATE: 5.0})
    assert quotas.connection_rate("127.0.0.1") == 5
    quotas.alter(entity({IP: "localhost"}.items()), {Quota.CONNECTION_CREATION_RATE: 7.0})
    assert quotas.connection_rate("127.0.0.1") == 7
    assert quotas.connection_rate("10.0.0.1") == 5


def test_quotas_outlive_a_restart(tmp_path: Path) -> None:
    with Emulator(data_dir=tmp_path) as emulator:
        emulator.set_quota({RATE: 1.0, Quota.REQUEST_PERCENTAGE: 2.5}, user="alice")
        emulator.set_quota({RATE: 3.0}, user=None, client_id="app")
        emulator.set_quota({RATE: None}, user="alice")
        emulator.set_quota({RATE: 1.0}, client_id="gone")
        emulator.set_quota({RATE: None}, client_id="gone")
    with Emulator(data_dir=tmp_path) as emulator:
        kept = {entity: dict(values) for entity, values in cluster_of(emulator).quotas.all()}
    assert kept == {
        entity({USER: "alice"}.items()): {"request_percentage": 2.5},
        entity({USER: None, CLIENT_ID: "app"}.items()): {"producer_byte_rate": 3.0},
    }
