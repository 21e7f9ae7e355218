"""Clients that must log in again while they work, faults in a login, and missing tokens."""

from __future__ import annotations

import base64
import time

import pytest
from confluent_kafka import Producer as ConfluentProducer
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite import Producer
from dualwrite.broker_emulator import Emulator, Listener, Sasl, UnsecuredTokens
from dualwrite.broker_emulator.security.sasl.mechanism import Mechanism, Plain, SaslAuthenticationError, SaslError
from dualwrite.broker_emulator.security.sasl.oauthbearer import OAuthBearer
from dualwrite.broker_emulator.security.sasl.scram import Scram, ScramCredential
from tests.emulator.inside import cluster_of, run_in_loop
from tests.emulator.security.login_script import GOOD, USER, bearer
from tests.support.proof_only import examples

SESSION_MS = 1_200
LISTENERS = [
    Listener("BRIEF", sasl=Sasl(mechanisms=["SCRAM-SHA-512"], connections_max_reauth_ms=SESSION_MS)),
    Listener("PLAIN", sasl=Sasl(mechanisms=["PLAIN"], plain_users={USER: GOOD})),
]
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": USER,
    "sasl.password": GOOD,
}


def renewals(emulator: Emulator) -> int:
    """Return how many open connections have logged in again."""
    return run_in_loop(
        emulator,
        lambda: sum(
            connection.login is not None and connection.login.renewed_ms is not None
            for node in cluster_of(emulator).nodes.values()
            for connection in node.connections
        ),
    )


def test_transactions_go_on_over_the_end_of_sessions(caplog: pytest.LogCaptureFixture) -> None:
    with Emulator(listeners=LISTENERS, scram_users={USER: GOOD}, topics={"ours": 1, "theirs": 1}) as emulator:
        where = {"bootstrap.servers": emulator.bootstrap("BRIEF"), **LOGIN}
        theirs = ConfluentProducer({**where, "transactional.id": "theirs", "log_level": 0})
        theirs.init_transactions(10)
        with Producer({**where, "transactional.id": "ours"}) as ours:
            ours.init_transactions()
            deadline_s, number = time.monotonic() + 20, 0
            while renewals(emulator) < 2 or number < 5:
                assert time.monotonic() < deadline_s
                ours.begin_transaction()
                ours.send("ours", b"%d" % number).result(60)
                ours.commit_transaction()
                theirs.begin_transaction()
                theirs.produce("theirs", b"%d" % number)
                theirs.commit_transaction(10)
                number += 1
        assert {transaction.state for transaction in emulator.transactions()} == {"CompleteCommit"}
        for topic in ("ours", "theirs"):
            assert emulator.log(topic).log_end_offset == 2 * number  # each with its marker
    expired = [each for each in caplog.messages if "its login has expired" in each]
    assert [each for each in expired if "'rdkafka'" not in each] == [], "librdkafka has a timer of its own"


CREDENTIALS = {USER: ScramCredential.of_password("SCRAM-SHA-256", GOOD)}


def mechanisms() -> list[Mechanism]:
    begun = Scram("SCRAM-SHA-256", CREDENTIALS.get)
    begun.respond(b"n,,n=worker,r=nonce")
    return [
        Plain({USER: GOOD}),
        Scram("SCRAM-SHA-256", CREDENTIALS.get),
        begun,
        OAuthBearer(UnsecuredTokens(), lambda: 0),
    ]


TEXTS = st.text(alphabet='nprcsai=,+/\0\1 Ae1.-_{}[]:"\u20ac', max_size=40).map(str.encode)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.one_of(
        st.binary(max_size=40),
        TEXTS,
        TEXTS.map(lambda text: b"n,," + text),
        TEXTS.map(lambda text: b"c=biws,r=" + text),
    )
)
def test_no_token_makes_a_server_stumble(token: bytes) -> None:
    for mechanism in mechanisms():
        try:
            mechanism.respond(token)
        except (SaslError, SaslAuthenticationError):
            pass
        assert not mechanism.is_complete


@pytest.mark.parametrize(
    "claims",
    [
        b'{"sub":"a","exp":1e999}',
        b'{"sub":"a","exp":NaN}',
        b'{"sub":"a","exp":1' + b"0" * 400 + b"}",
        b'{"sub":"a","exp":true}',
        b'{"sub":["a"],"exp":9e9}',
        b'["sub"]',
        b"[" * 100_000,
        b'"\\ud800"',
    ],
)
def test_invalid_claims(claims: bytes) -> None:
    part = base64.urlsafe_b64encode(claims).rstrip(b"=").decode()
    server = OAuthBearer(UnsecuredTokens(), lambda: 0)
    assert server.respond(bearer(f"eyJhbGciOiJub25lIn0.{part}.")) == b'{"status":"invalid_token"}'
    assert not server.is_complete
