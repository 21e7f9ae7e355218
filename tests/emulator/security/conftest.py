"""One emulator with a listener of every kind, for all tests that only connect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, ClientAuth, Emulator, Listener, Sasl, Tls
from dualwrite.broker_emulator.security.sasl.mechanism import MECHANISMS
from dualwrite.testing.certificates import Certificates, make_certificates
from tests.emulator.security.login_script import GOOD, OTHER, USER


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[Emulator]:
    identity: dict[str, Any] = {"keystore_location": certificates.broker, "truststore_location": certificates.authority}
    sasl = Sasl(mechanisms=MECHANISMS, plain_users={USER: GOOD, OTHER: GOOD})
    listeners = [
        Listener("PLAINTEXT"),
        Listener("TLS", tls=Tls(**identity)),
        Listener("ASKING", tls=Tls(**identity, client_auth=ClientAuth.REQUESTED)),
        Listener("MUTUAL", tls=Tls(**identity, client_auth=ClientAuth.REQUIRED)),
        Listener("SASL", sasl=sasl),
        Listener("SASL_TLS", tls=Tls(**identity), sasl=sasl),
    ]
    config = BrokerConfig(connection_failed_authentication_delay_ms=0)
    users = {USER: GOOD, OTHER: GOOD}
    with Emulator(nodes=2, listeners=listeners, config=config, scram_users=users, topics={"t": 2}) as broker:
        yield broker
