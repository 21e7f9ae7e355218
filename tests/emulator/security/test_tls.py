"""TLS at the wire: the principal of a client certificate, and connections whose handshake never completes."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dualwrite.broker_emulator import BrokerConfig, ClientAuth, Emulator, Listener, Sasl, Tls
from dualwrite.broker_emulator.security.principal import PrincipalMapping, subject_of
from dualwrite.testing.certificates import KEY_PASSWORD, Certificates
from tests.emulator.api.raw_client import RawClient
from tests.emulator.inside import cluster_of, run_in_loop
from tests.emulator.security.login_script import GOOD, USER, plain_token
from tests.support.conditions import until

VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # ApiVersions v0
HANDSHAKE_BEGINS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def context_of(certificates: Certificates, *, with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if with_certificate:
        context.load_cert_chain(certificates.client, certificates.client_key, KEY_PASSWORD)
    return context


def address(emulator: Emulator, listener: str) -> tuple[str, int]:
    host, _, port = emulator.bootstrap(listener).split(",")[0].rpartition(":")
    return host, int(port)


@contextmanager
def secure(emulator: Emulator, listener: str, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with socket.create_connection(address(emulator, listener), 10) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            yield connection


def versions_over(connection: socket.socket) -> bytes:
    connection.sendall(VERSIONS)
    return connection.recv(8)[4:]


def principals(emulator: Emulator) -> list[str]:
    """Return the principals of all connections."""
    return run_in_loop(
        emulator,
        lambda: [
            str(connection.principal) for node in cluster_of(emulator).nodes.values() for connection in node.connections
        ],
    )


def connections(emulator: Emulator) -> int:
    return len(principals(emulator))


@pytest.fixture
def nobody_else(secured: Emulator) -> Emulator:
    until(lambda: connections(secured) == 0)
    return secured


@pytest.mark.parametrize(
    ("listener", "with_certificate", "is_named"),
    [("MUTUAL", True, True), ("ASKING", True, True), ("ASKING", False, False), ("TLS", True, False)],
)
def test_a_client_is_named_by_its_certificate(
    nobody_else: Emulator, certificates: Certificates, listener: str, with_certificate: bool, is_named: bool
) -> None:
    shown = x509.load_pem_x509_certificates(certificates.client.read_bytes())[0]
    name = subject_of(shown.public_bytes(serialization.Encoding.DER))
    assert name.startswith("CN=client,OU=Testing cert \\#")
    with secure(nobody_else, listener, context_of(certificates, with_certificate=with_certificate)) as connection:
        assert versions_over(connection) == b"\0\0\0\7"
        assert principals(nobody_else) == [f"User:{name}" if is_named else "User:ANONYMOUS"]


def test_rules_name_a_client_or_keep_it_out(certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    identity: dict[str, Any] = {"keystore_location": certificates.broker, "truststore_location": certificates.authority}
    listeners = [
        Listener(
            name,
            tls=Tls(**identity, client_auth=ClientAuth.REQUIRED, principal_mapping=PrincipalMapping(rule)),
        )
        for name, rule in (("BY_NAME", "RULE:^CN=([^,]+),.*$/$1/U"), ("NOBODY", "RULE:^UID=.*$/x/"))
    ]
    context = context_of(certificates, with_certificate=True)
    with Emulator(listeners=listeners) as emulator:
        with secure(emulator, "BY_NAME", context) as connection:
            assert versions_over(connection) == b"\0\0\0\7"
            assert principals(emulator) == ["User:CLIENT"]
        with secure(emulator, "NOBODY", context) as connection:
            connection.sendall(VERSIONS)
            assert connection.recv(1) == b""
    assert "no rule of ssl.principal.mapping.rules applies to CN=client" in caplog.text


def test_a_login_takes_precedence_over_the_certificate(nobody_else: Emulator, certificates: Certificates) -> None:
    with secure(nobody_else, "SASL_TLS", context_of(certificates, with_certificate=True)) as connection:
        assert versions_over(connection) == b"\0\0\0\7"
        connection.recv(65536)
        connection.sendall(struct.pack(">ihhihh", 17, 17, 1, 1, -1, 5) + b"PLAIN")
        connection.recv(65536)
        token = plain_token()
        connection.sendall(struct.pack(">ihhihi", 14 + len(token), 36, 0, 2, -1, len(token)) + token)
        assert connection.recv(65536)[8:10] == b"\0\0"
        assert principals(nobody_else) == [f"User:{USER}"]


# -- connections that never come to be


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")


def a_request_without_tls(connection: socket.socket) -> None:
    connection.sendall(VERSIONS)


def half_a_handshake_and_nonsense(connection: socket.socket) -> None:
    connection.sendall(HANDSHAKE_BEGINS + bytes(600))


@pytest.mark.parametrize("attack", [garbage, a_request_without_tls, half_a_handshake_and_nonsense])
def test_garbage_instead_of_a_handshake_is_closed_with_one_log_line(
    nobody_else: Emulator, caplog: pytest.LogCaptureFixture, attack: Callable[[socket.socket], None]
) -> None:
    with caplog.at_level(logging.WARNING), socket.create_connection(address(nobody_else, "TLS"), 10) as connection:
        attack(connection)
        while connection.recv(4096):
            pass
        until(lambda: connections(nobody_else) == 0)
    (line,) = [record.getMessage() for record in caplog.records if "closes the connection" in record.getMessage()]
    assert "127.0.0.1" in line
    assert "TLS handshake failed" in line


def test_a_refused_client_gets_the_reason(secured: Emulator, certificates: Certificates) -> None:
    with secure(secured, "MUTUAL", context_of(certificates)) as connection:
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            connection.sendall(VERSIONS)
            connection.recv(1)


def test_unfinished_handshakes_do_not_disturb_other_clients_and_are_counted(certificates: Certificates) -> None:
    config = BrokerConfig(max_connections_per_ip=20)
    sasl = Sasl(mechanisms=["PLAIN"], plain_users={USER: GOOD})
    listeners = [
        Listener("TLS", tls=Tls(keystore_location=certificates.broker)),
        Listener("SASL", sasl=sasl),
    ]
    with Emulator(listeners=listeners, config=config) as emulator:
        slow = [socket.create_connection(address(emulator, "TLS"), 10) for _ in range(10)]
        for connection in slow:
            connection.sendall(HANDSHAKE_BEGINS)
        undecided = [socket.create_connection(address(emulator, "SASL"), 10) for _ in range(9)]
        for connection in undecided:
            connection.sendall(VERSIONS[:9])
        until(lambda: connections(emulator) == 19)
        with secure(emulator, "TLS", context_of(certificates)) as connection:
            assert versions_over(connection) == b"\0\0\0\7"
            with socket.create_connection(address(emulator, "SASL"), 10) as one_more:
                assert one_more.recv(1) == b""
        for connection in (*slow, *undecided):
            connection.close()
        until(lambda: connections(emulator) == 0)


# -- secrets and delays


def test_a_failed_login_takes_its_time_and_reveals_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sasl = Sasl(mechanisms=["PLAIN"], plain_users={USER: GOOD})
    config = BrokerConfig(connection_failed_authentication_delay_ms=150)
    with caplog.at_level(logging.DEBUG), Emulator(listeners=[Listener("SASL", sasl=sasl)], config=config) as emulator:
        with RawClient(emulator.bootstrap()) as client, RawClient(emulator.bootstrap()) as other:
            client.call("sasl_handshake", 1, mechanism="PLAIN")
            client.send("sasl_authenticate", 2, auth_bytes=plain_token(password="guess-that-is-wrong"))
            other.call("sasl_handshake", 1, mechanism="PLAIN")  # others are served meanwhile
            assert other.call("sasl_authenticate", 2, auth_bytes=plain_token()).error_code == 0
            assert client.is_silent(0.02)
            assert client.receive("sasl_authenticate", 2, 2).error_code == 58
            assert client.is_closed()
    assert "Authentication failed: Invalid username or password" in caplog.text
    assert GOOD not in caplog.text
    assert "guess-that-is-wrong" not in caplog.text
