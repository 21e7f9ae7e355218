"""The SCRAM server with the examples of its RFCs, and how its users are stored."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from kafka.net.sasl.scram import ScramClient

from dualwrite.broker_emulator import Emulator, Listener, Sasl
from dualwrite.broker_emulator.security.sasl.scram import HASHES, Scram, ScramCredential
from tests.emulator.api.raw_client import RawClient
from tests.emulator.security.login_script import alter_scram, describe_scram
from tests.support.narrowing import current

# RFC 7677, section 3
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CHALLENGE = f"r={NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = f"c=biws,r={NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
VERIFIER = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def credential(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return ScramCredential.of_salted_password(mechanism, salted, salt, iterations)


def server(**users: ScramCredential) -> Scram:
    return Scram("SCRAM-SHA-256", users.get, lambda: SERVER_NONCE)


def test_the_example_of_rfc_7677() -> None:
    scram = server(user=credential("SCRAM-SHA-256", "pencil", SALT, 4096))
    assert scram.respond(f"n,,n=user,r={NONCE}".encode()).decode() == CHALLENGE
    assert not current(scram.is_complete)
    assert scram.respond(FINAL.encode()).decode() == VERIFIER
    assert scram.is_complete
    assert scram.authorization_id == "user"


# -- the users


def test_altered_messages_get_the_response_of_apache_kafka() -> None:
    """Kafka's response to the same requests."""
    twice = (92, "A user credential cannot be altered twice in the same request")
    absent = (91, "Attempt to delete a user credential that does not exist")
    with Emulator(scram_users={"worker": "secret"}) as emulator, RawClient(emulator.bootstrap_servers) as client:
        changes = [("a", 1, 4096), ("a", 2, 4096), ("few", 1, 4095), ("many", 1, 16385), ("third", 3, 4096)]
        changes += [("", 1, 4096), ("none", 0, 4096), ("ok", 1, 4096), ("ok2", 2, 16384), ("ghost", 1, 4096)]
        assert alter_scram(client, [("ghost", 1)], changes) == {
            "ghost": absent,
            "a": twice,
            "few": (93, "Too few iterations"),
            "many": (93, "Too many iterations"),
            "third": (33, "Unknown SCRAM mechanism"),
            "": (93, "Username must not be empty"),
            "none": (33, "Unknown SCRAM mechanism"),
            "ok": (0, None),
            "ok2": (0, None),
        }
        repeated = "Cannot describe SCRAM credentials for the same user twice in a single request: ok2"
        missing = "Attempt to describe a user credential that does not exist: nobody"
        assert describe_scram(client, "ok", "ok2", "nobody", "ok2", "worker") == {
            "ok": (0, "", [(1, 4096)]),
            "ok2": (92, repeated, []),
            "nobody": (91, missing, []),
            "worker": (0, "", [(1, 4096), (2, 4096)]),
        }
        removed = [("ok", 1), ("ok", 2), ("ok2", 1)]
        assert alter_scram(client, removed, [("ok2", 2, 5000)]) == {"ok": twice, "ok2": absent}
        assert alter_scram(client, [("ok", 1), ("worker", 2)], []) == {"ok": (0, None), "worker": (0, None)}
        assert describe_scram(client) == {"ok2": (0, "", [(2, 16384)]), "worker": (0, "", [(1, 4096)])}


def login(emulator: Emulator, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> int:
    with RawClient(emulator.bootstrap()) as connection:
        connection.call("sasl_handshake", 1, mechanism=mechanism)
        client = ScramClient(user, password, mechanism)
        answer: Any = connection.call("sasl_authenticate", 2, auth_bytes=client.first_message())
        if not answer.error_code:
            client.process_server_first_message(answer.auth_bytes)
            answer = connection.call("sasl_authenticate", 2, auth_bytes=client.final_message())
        return int(answer.error_code)


LISTENERS = [Listener("SASL", sasl=Sasl(mechanisms=["SCRAM-SHA-256", "SCRAM-SHA-512"])), Listener()]


def test_users_outlive_a_restart_and_their_passwords_are_nowhere(tmp_path: Path) -> None:
    with Emulator(listeners=LISTENERS, data_dir=tmp_path) as emulator:
        emulator.set_scram_user("alice", "password-of-alice")
        emulator.set_scram_user("bob", "password-of-bob")
        emulator.set_scram_user("bob", None)
        assert login(emulator, "alice", "password-of-alice") == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"password-of" not in kept
    assert json.dumps("stored_key").encode() in kept
    with Emulator(listeners=LISTENERS, data_dir=tmp_path) as emulator:
        for mechanism in HASHES:
            assert login(emulator, "alice", "password-of-alice", mechanism) == 0
        assert login(emulator, "alice", "another") == 58
        assert login(emulator, "bob", "password-of-bob") == 58
        with RawClient(emulator.bootstrap("PLAINTEXT")) as client:
            assert list(describe_scram(client)) == ["alice"]
