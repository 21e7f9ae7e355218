"""Several listeners: their settings by Kafka's names, and their bound and advertised addresses."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificates

from dualwrite.broker_emulator import BrokerConfig, ClientAuth, Emulator, Listener, Sasl, Tls
from dualwrite.broker_emulator.net.listeners import listeners_of
from dualwrite.broker_emulator.security.listener import SecurityProtocol, StoreType
from dualwrite.broker_emulator.security.settings import listeners_from, parse_jaas
from dualwrite.testing.certificates import KEY_PASSWORD, Certificates
from tests.emulator.api.raw_client import RawClient, plain_batch, produce_fields

PLAIN_ENTRY = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="a=\\"b;" user_bob=c;'


def told(address: str) -> list[str]:
    """Return the brokers of a Metadata response."""
    fields = {"topics": (), "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    with RawClient(address) as client:
        return [f"{row.host}:{row.port}" for row in client.call("metadata", 12, **fields).brokers]


def test_clients_get_the_listener_that_they_connected_to() -> None:
    with Emulator(nodes=2, listeners=[Listener("INSIDE"), Listener("OUTSIDE")], topics={"t": 1}) as emulator:
        assert emulator.listeners == ["INSIDE", "OUTSIDE"]
        assert emulator.bootstrap() == emulator.bootstrap_servers == emulator.bootstrap("INSIDE")
        for name in emulator.listeners:
            addresses = emulator.bootstrap(name).split(",")
            assert len(set(addresses)) == 2
            for address in addresses:
                assert told(address) == addresses
                with RawClient(address) as client:
                    cluster = client.call("describe_cluster", 0, include_cluster_authorized_operations=False)
                    assert [f"{row.host}:{row.port}" for row in cluster.brokers] == addresses
                    found = client.call("find_coordinator", 3, key="g", key_type=0)
                    assert f"{found.host}:{found.port}" in addresses
        stranger = next(
            address
            for node, address in enumerate(emulator.bootstrap("OUTSIDE").split(","))
            if node != emulator.log("t").leader_id
        )
        with RawClient(stranger) as client:  # KIP-951
            answer = client.call("produce", 10, **produce_fields(10, "t", plain_batch(b"v")))
            (endpoint,) = answer.node_endpoints
            assert f"{endpoint.host}:{endpoint.port}" in emulator.bootstrap("OUTSIDE").split(",")
        with pytest.raises(ValueError, match="no listener NOWHERE; there are INSIDE, OUTSIDE"):
            emulator.bootstrap("NOWHERE")
    with pytest.raises(RuntimeError):
        emulator.bootstrap()


@pytest.mark.parametrize(
    ("listeners", "nodes", "why"),
    [
        ([], 1, "one or more listeners"),
        ([Listener("A"), Listener("A")], 1, "with different names"),
        ([Listener("A", port=9092), Listener("B", port=9093)], 2, "both need port 9093"),
        ([Listener("A", port=65535)], 2, "ports beyond 65535"),
    ],
)
def test_listeners_that_cannot_be(listeners: list[Listener], nodes: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Emulator(listeners=listeners, nodes=nodes)


def test_an_address_and_listeners_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="mutually exclusive"):
        Emulator(listen="127.0.0.1:0", listeners=[Listener()])


# -- settings by Kafka's names


def test_a_server_properties_of_kafka(certificates: Certificates) -> None:
    listeners = listeners_from(
        {
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093,Clients://[::1]:9094,INSIDE://localhost:9095",
            "advertised.listeners": "PLAINTEXT://here:1,CONTROLLER://here:2,CLIENTS://there:3",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL,INSIDE:SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates.authority),
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
            "listener.name.inside.ssl.client.auth": "requested",
            "listener.name.inside.ssl.enabled.protocols": "TLSv1.3",
            "sasl.enabled.mechanisms": "PLAIN, OAUTHBEARER",
            "connections.max.reauth.ms": "1000",
            "listener.name.clients.oauthbearer.connections.max.reauth.ms": "2000",
            "listener.name.clients.plain.sasl.jaas.config": PLAIN_ENTRY,
            "listener.name.clients.oauthbearer.sasl.jaas.config": (
                'x.OAuthBearerLoginModule required unsecuredValidatorRequiredScope="a b" '
                'unsecuredValidatorPrincipalClaimName="name" unsecuredValidatorAllowableClockSkewMs="7";'
            ),
        }
    )
    assert listeners is not None
    plaintext, clients, inside = listeners
    assert (plaintext.name, plaintext.host, plaintext.port, plaintext.advertised(0, 9092)) == (
        "PLAINTEXT",
        "",
        9092,
        ("here", 1),
    )
    assert [each.protocol for each in listeners] == [
        SecurityProtocol.PLAINTEXT,
        SecurityProtocol.SASL_SSL,
        SecurityProtocol.SSL,
    ]
    assert (clients.host, clients.port, clients.advertised_host) == ("::1", 9094, "there")
    assert clients.tls is not None
    assert clients.tls.client_auth is ClientAuth.NONE  # of a listener with SASL only where it says so itself
    assert clients.sasl is not None
    assert clients.sasl.plain_users == {"alice": 'a="b;', "bob": "c"}
    assert [clients.sasl.max_reauth_ms(name) for name in ("PLAIN", "OAUTHBEARER")] == [1000, 2000]
    tokens = clients.sasl.unsecured_tokens
    assert (tokens.required_scope, tokens.principal_claim_name, tokens.allowable_clock_skew_ms) == (
        ("a", "b"),
        "name",
        7,
    )
    assert inside.tls is not None
    assert (inside.tls.client_auth, inside.tls.enabled_protocols) == (ClientAuth.REQUESTED, ("TLSv1.3",))
    assert inside.tls.principal_mapping.name_of("CN=Me,O=x") == "me"


WRONG = {
    "listeners": ("PLAINTEXT:9092", "is not NAME://HOST:PORT"),
    "advertised.listeners": ("OTHER://x:1", "which listeners does not have"),
    "listener.security.protocol.map": ("A:TLS", "must be one of PLAINTEXT, SSL"),
    "sasl.enabled.mechanisms": ("GSSAPI", "GSSAPI is not supported"),
    "connections.max.reauth.ms": ("soon", "must be a whole number, not 'soon'"),
    "ssl.client.auth": ("perhaps", "must be one of none, requested, required"),
    "ssl.keystore.type": ("JKS", "which is not supported: export PEM or PKCS12"),
    "ssl.enabled.protocols": ("SSLv3", "supports TLSv1.2 and TLSv1.3"),
    "ssl.truststore.location": ("", ""),
    "listener.name.a.plain.sasl.jaas.config": ("PlainLoginModule required", "semicolon"),
    "listener.name.a.oauthbearer.sasl.jaas.config": ("PlainLoginModule required;", "OAUTHBEARER needs OAuth"),
    "listener.name.a.plain.sasl.server.callback.handler.class": (
        "com.example.Ldap",
        r"names com\.example\.Ldap, which is not",
    ),
    "listener.name.a.oauthbearer.sasl.server.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "leave it out, for OAuthBearerUnsecuredValidatorCallbackHandler",
    ),
}


@pytest.mark.parametrize("name", [name for name, (_, why) in WRONG.items() if why])
def test_settings_that_cannot_be(certificates: Certificates, name: str) -> None:
    value, why = WRONG[name]
    settings = {
        "listeners": "A://127.0.0.1:0",
        "listener.security.protocol.map": "A:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
    }
    with pytest.raises(ValueError, match=why):
        listeners_from(settings | {name: value})


@pytest.mark.parametrize(
    ("removed", "why"),
    [
        ("sasl.enabled.mechanisms", "GSSAPI, which Kafka uses then, is not supported"),
        ("ssl.keystore.location", "needs either ssl.keystore.location"),
        ("listener.security.protocol.map", "has no security protocol for the listener A"),
    ],
)
def test_settings_that_are_missing(certificates: Certificates, removed: str, why: str) -> None:
    settings = {
        "listeners": "A://127.0.0.1:0",
        "listener.security.protocol.map": "A:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
    }
    del settings[removed]
    with pytest.raises(ValueError, match=why):
        listeners_from(settings)


def test_an_unreachable_address() -> None:
    with pytest.raises(ValueError, match=r"clients cannot connect to 0\.0\.0\.0"):
        listeners_from({"listeners": "PLAINTEXT://0.0.0.0:9092"})
    (listener,) = listeners_from({"listeners": "PLAINTEXT://:0"}) or []
    assert listener.advertised(0, 5).host == socket.gethostname()


@pytest.mark.parametrize(
    ("listen", "settings", "host", "told"),
    [
        (None, {}, "127.0.0.1", ("127.0.0.1", 5)),
        ("[::1]:0", {}, "::1", ("::1", 5)),
        ("0.0.0.0:9092", {"advertised.listeners": "PLAINTEXT://broker:19092"}, "0.0.0.0", ("broker", 19092)),
        (None, {"advertised.listeners": "PLAINTEXT://broker:19092"}, "127.0.0.1", ("broker", 19092)),
        ("[::]:9092", {"advertised.listeners": "PLAINTEXT://[::1]:19092"}, "::", ("::1", 19092)),
        # a file's settings of unused listeners do not apply to the one in use
        (
            "127.0.0.1:0",
            {"listeners": "A://:9092", "advertised.listeners": "A://broker:9092"},
            "127.0.0.1",
            ("127.0.0.1", 5),
        ),
    ],
)
def test_the_listen_address_and_the_advertised_address_may_differ(
    listen: str | None, settings: dict[str, str], host: str, told: tuple[str, int]
) -> None:
    (listener,) = listeners_of(listen, None, settings)
    assert (listener.name, listener.host, listener.advertised(0, 5)) == ("PLAINTEXT", host, told)


def test_the_config_of_an_emulator_brings_its_listeners() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": PLAIN_ENTRY,
        }
    )
    with Emulator(config=config) as emulator, RawClient(emulator.bootstrap("LOGIN")) as client:
        assert emulator.listeners == ["PLAINTEXT", "LOGIN"]
        client.call("sasl_handshake", 1, mechanism="PLAIN")
        assert client.call("sasl_authenticate", 2, auth_bytes=b"\0bob\0c").error_code == 0
    with Emulator(config=config, listen="127.0.0.1:0") as emulator:
        assert emulator.listeners == ["PLAINTEXT"]


@pytest.mark.parametrize(
    "text", ["", "A required", "A maybe b=c;", 'A required b="c;', "A required b c;", "A required b=;"]
)
def test_jaas_that_cannot_be_read_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_jaas(text)
    assert not text or text not in str(caught.value)


def test_the_process_prints_every_listener(tmp_path: Path) -> None:
    users = tmp_path / "users.properties"
    users.write_text("bob=password-of-bob\n")
    settings = ("listeners=PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0", "sasl.enabled.mechanisms=SCRAM-SHA-256")
    protocols = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT"
    arguments = [part for setting in (*settings, protocols) for part in ("--config", setting)]
    command = [
        sys.executable,
        "-m",
        "dualwrite.broker_emulator",
        "--nodes",
        "2",
        "--add-scram",
        "alice:a:b",
        "--scram-users",
        str(users),
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        plaintext, login = process.stdout.readline().strip(), process.stdout.readline().strip()
        assert told(plaintext) == plaintext.split(",")
        assert login.startswith("LOGIN://")
        for user in (b"alice", b"bob"):
            with RawClient(login.removeprefix("LOGIN://")) as client:
                client.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
                known = client.call("sasl_authenticate", 2, auth_bytes=b"n,,n=" + user + b",r=nonce")
                assert known.error_code == 0
        process.terminate()
        assert process.wait(30) == 0


# -- where keys are kept


def pem_files(certificates: Certificates, directory: Path) -> dict[str, Tls]:
    """Return TLS settings with the same certificate in every supported format."""
    pem = certificates.broker.read_text()
    key, chain = pem.partition("-----END PRIVATE KEY-----")[0] + "-----END PRIVATE KEY-----", pem
    one_line = " ".join(chain.split("-----END PRIVATE KEY-----")[1].split())
    loaded = serialization.load_pem_private_key(pem.encode(), None)
    first, *others = load_pem_x509_certificates(pem.encode())
    encryption = serialization.BestAvailableEncryption(b"of-the-store")
    store, authority = directory / "broker.p12", directory / "authority.p12"
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"b", loaded, first, others, encryption))  # type: ignore[arg-type]
    (trusted,) = load_pem_x509_certificates(certificates.authority.read_bytes())
    authority.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [trusted], encryption))
    locked = directory / "locked.pem"
    locked_key = loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(KEY_PASSWORD.encode()),
    )
    locked.write_bytes(locked_key + b"".join(c.public_bytes(serialization.Encoding.PEM) for c in (first, *others)))
    return {
        "PEM": Tls(keystore_location=certificates.broker),
        "PEM, encrypted": Tls(keystore_location=locked, key_password=KEY_PASSWORD),
        "PEM in settings, on one line": Tls(
            keystore_certificate_chain=one_line,
            keystore_key=" ".join(key.split("\n")),
            truststore_certificates=" ".join(certificates.authority.read_text().split("\n")),
        ),
        "PKCS12": Tls(
            keystore_type=StoreType.PKCS12,
            keystore_location=store,
            keystore_password="of-the-store",
            truststore_type=StoreType.PKCS12,
            truststore_location=authority,
            truststore_password="of-the-store",
            client_auth=ClientAuth.REQUIRED,
        ),
    }


def test_every_form_of_a_key_store(certificates: Certificates, tmp_path: Path) -> None:
    forms = pem_files(certificates, tmp_path)
    listeners = [Listener(f"L{number}", tls=tls) for number, tls in enumerate(forms.values())]
    context = ssl.create_default_context(cafile=str(certificates.authority))
    context.load_cert_chain(certificates.client, certificates.client_key, KEY_PASSWORD)
    with Emulator(listeners=listeners) as emulator:
        for name in emulator.listeners:
            host, _, port = emulator.bootstrap(name).rpartition(":")
            with socket.create_connection((host, int(port))) as plain:
                with context.wrap_socket(plain, server_hostname=host) as secure:
                    secure.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\xff\xff")  # ApiVersions v0
                    assert secure.recv(8)[4:] == b"\0\0\0\7"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "needs either ssl.keystore.location"),
        ({"keystore_location": "x", "keystore_key": "k"}, "go together"),
        ({"keystore_location": "x", "client_auth": ClientAuth.REQUIRED}, "needs a truststore"),
        ({"keystore_location": "x", "enabled_protocols": ()}, "names no protocol"),
    ],
)
def test_tls_that_contradicts_itself(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Tls(**settings)  # type: ignore[arg-type]


def test_invalid_key_and_certificate_files_are_refused(certificates: Certificates, tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)))
    cases = [
        (Tls(keystore_location=tmp_path / "absent"), "absent cannot be read"),
        (Tls(keystore_location=noise), "is not a PEM file"),
        (Tls(keystore_location=certificates.authority), "no certificate with its key"),
        (Tls(keystore_location=certificates.client_key), "no certificate with its key"),
        (Tls(keystore_location=noise, keystore_type=StoreType.PKCS12), "is not a PKCS12 file"),
        (Tls(keystore_location=certificates.broker, truststore_location=certificates.client_key), "no certificates"),
    ]
    for tls, why in cases:
        with pytest.raises(ValueError, match=why):
            Emulator(listeners=[Listener(tls=tls)])


def test_no_secret_is_shown(certificates: Certificates) -> None:
    tls = Tls(
        keystore_location="x", keystore_password="secret-1", key_password="secret-2", truststore_password="secret-3"
    )
    sasl = Sasl(mechanisms=["PLAIN"], plain_users={"alice": "secret-4"})
    assert "secret" not in repr(Listener("A", tls=tls, sasl=sasl))
    assert "secret" not in repr(parse_jaas('A required password="secret";'))
