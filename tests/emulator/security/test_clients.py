"""Foreign clients and our own log in by every protocol and mechanism, and every mistake is refused."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.security.sasl.mechanism import MECHANISMS
from dualwrite.testing.certificates import Certificates
from tests.emulator.security.login_script import WRONG
from tests.emulator.security.ways_in import CLIENTS, TOPIC, RefusedError, WayIn

GOOD_WAYS = {
    "PLAINTEXT": WayIn("PLAINTEXT"),
    "SSL": WayIn("TLS"),
    "SSL, asked for a certificate without one": WayIn("ASKING"),
    "SSL with a certificate": WayIn("MUTUAL", has_certificate=True),
    **{f"SASL_PLAINTEXT by {mechanism}": WayIn("SASL", mechanism) for mechanism in MECHANISMS},
    **{f"SASL_SSL by {mechanism}": WayIn("SASL_TLS", mechanism) for mechanism in MECHANISMS},
}
BAD_WAYS = {
    **{f"{mechanism}, another password": WayIn("SASL", mechanism, password=WRONG) for mechanism in MECHANISMS[:3]},
    "OAUTHBEARER, an old token": WayIn("SASL", "OAUTHBEARER", token_age_s=3600),
    "SSL, an authority that is not trusted": WayIn("TLS", authority="stranger"),
    "SSL without the certificate that is required": WayIn("MUTUAL"),
}
BELIEVES_TO_BE_IN = ("aiokafka", "OAUTHBEARER, an old token")
"""aiokafka 0.14 takes any response to a token for success, and then repeats a request that is never answered."""
REFUSED = [(client, way) for client in CLIENTS for way in BAD_WAYS if (client, way) != BELIEVES_TO_BE_IN]


@pytest.mark.parametrize("way", GOOD_WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_valid_login_is_served(secured: Emulator, certificates: Certificates, client: str, way: str) -> None:
    before = sum(secured.log(TOPIC, partition).log_end_offset for partition in range(2))
    CLIENTS[client](secured, certificates, GOOD_WAYS[way])
    assert sum(secured.log(TOPIC, partition).log_end_offset for partition in range(2)) > before


@pytest.mark.parametrize(("client", "way"), REFUSED)
def test_an_invalid_login_is_refused(secured: Emulator, certificates: Certificates, client: str, way: str) -> None:
    before = [secured.log(TOPIC, partition).log_end_offset for partition in range(2)]
    with pytest.raises(RefusedError):
        CLIENTS[client](secured, certificates, BAD_WAYS[way])
    assert [secured.log(TOPIC, partition).log_end_offset for partition in range(2)] == before
