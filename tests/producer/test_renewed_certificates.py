"""Certificates that are renewed in place while a process runs, and the error about an expired one."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path

import pytest
import trustme

from dualwrite.broker_emulator import ClientAuth, Emulator, Listener, Tls
from dualwrite.errors import AuthenticationError
from dualwrite.producer import Producer

LOGGER = "dualwrite.client.wire.security"


def write(path: Path, certificate: trustme.LeafCert) -> None:
    path.write_bytes(
        certificate.private_key_pem.bytes() + b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_the_next_connection_reads_a_renewed_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    authority, ca, server, client = trustme.CA(), tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "client.pem"
    authority.cert_pem.write_to_path(str(ca))
    write(server, authority.issue_cert("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    write(client, authority.issue_cert("c@example.org", not_before=now - 2 * day, not_after=now - day))
    tls = Tls(keystore_location=server, truststore_location=ca, client_auth=ClientAuth.REQUIRED)
    with Emulator(listeners=[Listener("MUTUAL", tls=tls)], topics={"t": 1}) as emulator:

        def producer() -> Producer:
            return Producer(
                bootstrap_servers=emulator.bootstrap("MUTUAL"),
                security_protocol="SSL",
                ssl_ca_location=str(ca),
                ssl_certificate_location=str(client),
                reconnect_backoff_ms=5,
                retry_backoff_ms=5,
            )

        with producer() as first, producer() as second:
            with pytest.raises(AuthenticationError, match="certificate has expired by the broker's clock"):
                first.send("t", b"0")
            write(client, authority.issue_cert("c@example.org"))
            first.send("t", b"1").result(60)
            second.send("t", b"2").result(60)
            assert warnings(caplog) == []
            client.write_bytes(b"half of it")
            emulator.disconnect_clients()
            first.send("t", b"3").result(60)
            assert [line.partition(":")[0] for line in warnings(caplog)] == ["ssl.certificate.location"]
        assert [record.value for record in emulator.records("t")] == [b"1", b"2", b"3"]
