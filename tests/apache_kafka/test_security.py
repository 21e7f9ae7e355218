"""TLS, SASL and rights on a real Apache Kafka: every way in carries a transaction, every wrong way gets its reason."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from dualwrite.admin import TransactionAdmin
from dualwrite.errors import AbortableError, AuthenticationError, AuthorizationError, ConfigError, KafkaError
from dualwrite.producer import ConsumerGroupMetadata, Producer, TopicPartition
from dualwrite.testing.certificates import KEY_PASSWORD, Certificates, make_certificates
from tests.support.servers.apache_kafka import ApacheKafka

from .conftest import MakeFace, MakeProducer, NewName, running
from .faces import FACES
from .reading import DEADLINE_S, create_topics, read_committed
from .secured import (
    LIMITED,
    LISTENERS,
    ODDLY_NAMED,
    PASSWORDS,
    WORKER,
    by_password,
    secured_kafka,
    unsecured_token,
    ways,
)

WAYS = (
    "TLS",
    "TLS with a ready context",
    "TLS with a client's certificate",
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "PLAIN over TLS",
    "SCRAM-SHA-512 over TLS",
    "OAUTHBEARER over TLS",
)

Connect = Callable[..., Producer]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(certificates: Certificates) -> Iterator[ApacheKafka]:
    yield from running(secured_kafka(certificates))


@pytest.fixture(scope="module")
def admin(kafka: ApacheKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def settings_for(kafka: ApacheKafka, new_name: NewName) -> Callable[..., dict[str, Any]]:
    """Settings of a producer at a listener, with `host` in place of the address if given."""

    def settings_for(listener: str, settings: dict[str, Any], host: str = "127.0.0.1") -> dict[str, Any]:
        where = {"bootstrap.servers": kafka.address(listener).replace("127.0.0.1", host)}
        protocol = {"security.protocol": LISTENERS[listener], "max.block.ms": 20_000}
        return where | protocol | {"transactional.id": new_name("txn")} | settings

    return settings_for


@pytest.fixture
def connect(make_producer: MakeProducer, settings_for: Callable[..., dict[str, Any]]) -> Connect:
    """A producer with those settings."""
    return lambda *arguments, **more: make_producer(settings_for(*arguments, **more))


@pytest.fixture
def topic(kafka: ApacheKafka, new_name: NewName) -> str:
    name = new_name("topic")
    create_topics(kafka.bootstrap_servers, name)
    return name


def commit(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.send(topic, value)
    producer.commit_transaction()


@pytest.mark.parametrize("name", WAYS)
def test_a_transaction_by_every_way(
    name: str, kafka: ApacheKafka, certificates: Certificates, connect: Connect, topic: str
) -> None:
    way = ways(certificates)[name]
    producer = connect(way.listener, way.ours)
    producer.init_transactions()
    commit(producer, topic, b"kept")
    producer.begin_transaction()
    producer.send(topic, b"dropped")
    producer.flush()
    producer.abort_transaction()
    theirs = {"bootstrap.servers": kafka.address(way.listener)} | way.theirs
    assert read_committed(theirs, topic) == [b"kept"]


def test_names_that_scram_escapes(admin: AdminClient, connect: Connect, topic: str) -> None:
    secret = "p,=ä"
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for future in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(ODDLY_NAMED, info, secret.encode())]
    ).values():
        future.result(DEADLINE_S)
    producer = connect("SASL", by_password("SCRAM-SHA-512", ODDLY_NAMED, secret))
    until_allowed(producer.init_transactions)  # the broker hears of the user a moment later
    commit(producer, topic, b"v")


# -- refused


def _refusals() -> dict[str, tuple[str, dict[str, Any], str]]:
    """Listener, settings (with CA and STRANGER for files), and the error's text."""
    tls = {"ssl.ca.location": "CA"}
    token = {"sasl.mechanism": "OAUTHBEARER"}

    def no_token() -> str:
        raise LookupError("the secret of the token server")

    return {
        "unknown authority": ("TLS", {"ssl.ca.location": "STRANGER"}, "set ssl.ca.location to the certificate"),
        "authority of the system only": ("TLS", {}, "no trusted authority has signed"),
        "no client certificate": ("MUTUAL", tls, "set ssl.certificate.location and ssl.key.location"),
        "TLS to a plain listener": ("PLAINTEXT", tls | {"security.protocol": "SSL"}, "does not speak TLS: set"),
        "TLS to a plain listener with logins": (
            "SASL",
            tls | {"security.protocol": "SASL_SSL"} | by_password("PLAIN"),
            "does not speak TLS: set",
        ),
        "plain to a TLS listener": ("TLS", {"security.protocol": "PLAINTEXT"}, "speaks TLS: set security.protocol"),
        "plain to a TLS listener with logins": (
            "SASL_TLS",
            {"security.protocol": "SASL_PLAINTEXT"} | by_password("PLAIN"),
            "speaks TLS: set security.protocol to SSL or SASL_SSL",
        ),
        "no login": (
            "SASL",
            {"security.protocol": "PLAINTEXT"},
            "requires a login: set security.protocol=SASL_PLAINTEXT, "
            "and sasl.mechanism to one that it accepts: .*PLAIN",
        ),
        "no login, over TLS": (
            "SASL_TLS",
            tls | {"security.protocol": "SSL"},
            "requires a login: set security.protocol=SASL_SSL, "
            "and sasl.mechanism to one that it accepts: .*OAUTHBEARER",
        ),
        "a login where none is taken": (
            "PLAINTEXT",
            {"security.protocol": "SASL_PLAINTEXT"} | by_password("PLAIN"),
            "accepts no logins: set security.protocol=PLAINTEXT",
        ),
        "mechanism not enabled": (
            "SASL_TLS",
            tls | by_password("SCRAM-SHA-256"),
            "does not accept sasl.mechanism=SCRAM-SHA-256; it accepts .*SCRAM-SHA-512",
        ),
        "wrong password": (
            "SASL",
            by_password("PLAIN", WORKER, "wrong-secret"),
            "login by PLAIN as 'worker' was refused: .*check sasl.username and sasl.password",
        ),
        "wrong password, SCRAM": ("SASL", by_password("SCRAM-SHA-256", WORKER, "wrong-secret"), "was refused"),
        "unknown user, SCRAM": ("SASL", by_password("SCRAM-SHA-512", "nobody", "wrong-secret"), "as 'nobody' was ref"),
        "expired token": (
            "SASL_TLS",
            tls | token | {"sasl.oauth.token.provider": lambda: unsecured_token(WORKER, -100)},
            "invalid_token.*check the token",
        ),
        "no token": ("SASL_TLS", tls | token | {"sasl.oauth.token.provider": no_token}, "provider raised LookupError"),
        "not a token": ("SASL_TLS", tls | token | {"sasl.oauth.token.provider": lambda: None}, "and returned NoneType"),
    }


@pytest.mark.parametrize("face", FACES)  # the loops of the two differ, and so do their messages about TLS
@pytest.mark.parametrize("name", _refusals())
def test_wrong_credentials_are_reported_at_once(
    name: str,
    face: str,
    certificates: Certificates,
    make_face: MakeFace,
    settings_for: Callable[..., dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    listener, settings, words = _refusals()[name]
    files = {"CA": str(certificates.authority), "STRANGER": str(certificates.stranger)}
    settings = {key: files.get(value, value) for key, value in settings.items()}
    producer = make_face(face, settings_for(listener, settings))
    began_s = time.monotonic()
    with pytest.raises(AuthenticationError) as caught:
        producer.init_transactions()
    assert time.monotonic() - began_s < 15, "max.block.ms was waited for"
    assert re.search(words, str(caught.value))
    producer.close(timeout_s=None)
    assert time.monotonic() - began_s < 15, "closing waited for max.block.ms"
    for secret in ("wrong-secret", "the secret of", *PASSWORDS.values()):
        assert secret not in caplog.text + str(caught.value) + repr(caught.value) + producer.shown


def test_a_certificate_for_another_name(certificates: Certificates, connect: Connect, topic: str) -> None:
    settings = {"ssl.ca.location": str(certificates.authority)}
    with pytest.raises(AuthenticationError, match=r"certificate is not for 'localhost' .*connect by a name"):
        connect("TLS", settings, host="localhost").init_transactions()
    unchecked = settings | {"ssl.endpoint.identification.algorithm": "none"}
    connect("TLS", unchecked, host="localhost").init_transactions()


def test_files_that_cannot_be_used(certificates: Certificates, connect: Connect, tmp_path: Path) -> None:
    client = {"ssl.certificate.location": str(certificates.client), "ssl.key.location": str(certificates.client_key)}
    for settings, words in (
        ({"ssl.ca.location": str(tmp_path / "none.pem")}, r"ssl\.ca\.location: .*cannot be read \(No such file"),
        ({"ssl.ca.location": str(certificates.client_key)}, r"ssl\.ca\.location: .*no certificate in PEM"),
        (client | {"ssl.key.password": "wrong-secret"}, r"ssl\.key\.password is missing or wrong"),
        (client, r"ssl\.key\.password is missing or wrong"),
        (client | {"ssl.key.location": str(tmp_path / "none.pem"), "ssl.key.password": KEY_PASSWORD}, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            connect("TLS", settings)
        assert "wrong-secret" not in str(caught.value)
        assert KEY_PASSWORD not in str(caught.value)


def test_a_call_may_be_repeated_when_the_token_is_right(connect: Connect, topic: str) -> None:
    tokens = [unsecured_token(WORKER, -100), unsecured_token(WORKER, -100), unsecured_token(WORKER)]
    settings = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token.provider": lambda: tokens.pop(0)}
    producer = connect("BRIEF", settings)
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            producer.init_transactions()
    producer.init_transactions()
    assert tokens == []


def test_records_without_a_transaction_are_not_waited_for_either(connect: Connect, topic: str) -> None:
    producer = connect("SASL", by_password("PLAIN", WORKER, "wrong") | {"transactional.id": None})
    with pytest.raises(AuthenticationError, match="was refused"):
        producer.send(topic, b"v")
    producer.close()


def test_sessions_are_renewed_before_they_end(
    connect: Connect, kafka: ApacheKafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    logins: list[float] = []

    def token() -> str:
        logins.append(time.monotonic())
        return unsecured_token(WORKER)

    settings = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token.provider": token, "linger.ms": 0}
    producer = connect("BRIEF", settings)
    producer.init_transactions()
    number, deadline_s = 0, time.monotonic() + DEADLINE_S
    while len(logins) < 3:
        assert time.monotonic() < deadline_s
        commit(producer, topic, str(number).encode())
        number += 1
    # producers of other tests may tell of brokers that are gone
    assert not [line for line in caplog.messages if kafka.address("BRIEF") in line], caplog.text
    values = read_committed({"bootstrap.servers": kafka.bootstrap_servers}, topic)
    assert values == [str(each).encode() for each in range(number)]


def test_a_session_that_cannot_be_renewed(connect: Connect, kafka: ApacheKafka, topic: str) -> None:
    good = True
    settings = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauth.token.provider": lambda: unsecured_token(WORKER, 300 if good else -100),
    }
    producer = connect("BRIEF", settings)
    producer.init_transactions()
    good = False
    producer.begin_transaction()
    deadline_s = time.monotonic() + DEADLINE_S
    with pytest.raises(AuthenticationError):
        while True:
            assert time.monotonic() < deadline_s
            producer.send(topic, b"x").result(60)
    with pytest.raises(AuthenticationError):
        producer.flush()
    with pytest.raises(AuthenticationError):
        producer.commit_transaction()
    good = True
    producer.commit_transaction()
    values = read_committed({"bootstrap.servers": kafka.bootstrap_servers}, topic)
    assert len(values) > 1
    assert set(values) == {b"x"}


# -- rights


@pytest.fixture
def allow(admin: AdminClient) -> Callable[..., None]:
    """Give LIMITED a right."""

    def give(kind: ResourceType, name: str, operation: AclOperation) -> None:
        literal, permit = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        binding = AclBinding(kind, name, literal, f"User:{LIMITED}", "*", operation, permit)
        for future in admin.create_acls([binding]).values():
            future.result(DEADLINE_S)

    return give


def until_allowed(call: Callable[[], Any]) -> Any:
    """Repeat the call until the broker has heard of the right or the user."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return call()
        except (AuthorizationError, AuthenticationError):
            assert time.monotonic() < deadline_s


def missing(call: Callable[[], Any], kind: type[KafkaError], right: str) -> None:
    with pytest.raises(kind, match=rf"the right that is missing is .*{right}"):
        call()


def test_every_missing_right_is_named_and_can_be_given(
    kafka: ApacheKafka, connect: Connect, topic: str, allow: Callable[..., None], new_name: NewName
) -> None:
    transactional_id, group = new_name("txn"), new_name("group")
    producer = connect("SASL", by_password("PLAIN", LIMITED) | {"transactional.id": transactional_id})

    missing(producer.init_transactions, AuthorizationError, f"transactional id '{transactional_id}'")
    allow(ResourceType.TRANSACTIONAL_ID, transactional_id, AclOperation.DESCRIBE)
    until_allowed_or(producer.init_transactions, f"WRITE on the transactional id '{transactional_id}'")
    allow(ResourceType.TRANSACTIONAL_ID, transactional_id, AclOperation.WRITE)
    until_allowed(producer.init_transactions)

    producer.begin_transaction()
    missing(lambda: producer.send(topic, b"no"), AuthorizationError, f"DESCRIBE on the topic '{topic}'")
    allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    refused = until_allowed(lambda: producer.send(topic, b"no"))
    missing(refused.result, AbortableError, f"WRITE on the topic '{topic}'")
    with pytest.raises(AbortableError):
        producer.commit_transaction()
    producer.abort_transaction()

    allow(ResourceType.TOPIC, topic, AclOperation.WRITE)
    allow(ResourceType.TOPIC, topic, AclOperation.READ)
    offsets = {TopicPartition(topic, 0): 5}
    in_transaction_until_allowed(producer, lambda: producer.send(topic, b"yes").result())
    producer.begin_transaction()
    send_offsets = lambda: producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))  # noqa: E731
    missing(send_offsets, AbortableError, f"group '{group}'")
    producer.abort_transaction()
    allow(ResourceType.GROUP, group, AclOperation.READ)
    in_transaction_until_allowed(producer, send_offsets)
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    assert read_committed(settings, topic) == [b"yes"]


def until_allowed_or(call: Callable[[], Any], right: str) -> None:
    """Repeat the call until it is this right that is missing."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        with pytest.raises(AuthorizationError) as caught:
            call()
        if right in str(caught.value):
            return
        assert time.monotonic() < deadline_s, caught.value


def in_transaction_until_allowed(producer: Producer, call: Callable[[], Any]) -> None:
    """Repeat a transaction around the call until the broker has heard of the right."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        producer.begin_transaction()
        try:
            call()
        except AbortableError:
            producer.abort_transaction()
            assert time.monotonic() < deadline_s
        else:
            producer.commit_transaction()
            return


# -- administration, which comes in by the same settings


def test_administration_by_a_login_over_tls(kafka: ApacheKafka, certificates: Certificates) -> None:
    way = ways(certificates)["SCRAM-SHA-512 over TLS"]
    where = {"bootstrap.servers": kafka.address(way.listener)}
    with TransactionAdmin(where | way.ours) as transaction_admin:
        (broker,) = transaction_admin.describe_cluster().brokers
        assert f"{broker.host}:{broker.port}" == where["bootstrap.servers"]
    with TransactionAdmin(where | way.ours | {"sasl.password": "wrong-secret"}) as transaction_admin:
        for _ in range(2):
            began_s = time.monotonic()
            with pytest.raises(AuthenticationError, match="was refused"):
                transaction_admin.list_transactions()
            assert time.monotonic() - began_s < 15, "default.api.timeout.ms was waited for"


def test_every_right_that_administration_lacks_is_named_and_can_be_given(
    kafka: ApacheKafka, connect: Connect, topic: str, allow: Callable[..., None], new_name: NewName
) -> None:
    name, partition = new_name("txn"), TopicPartition(topic, 0)
    owner = connect("SASL", by_password("PLAIN") | {"transactional.id": name})
    owner.init_transactions()
    owner.begin_transaction()
    owner.send(topic, b"v")
    owner.flush()
    settings = {"bootstrap.servers": kafka.address("SASL"), "security.protocol": "SASL_PLAINTEXT"}
    with TransactionAdmin(settings | by_password("PLAIN", LIMITED)) as limited:
        assert name not in [row.transactional_id for row in limited.list_transactions()]
        missing(
            lambda: limited.describe_transaction(name), AuthorizationError, f"DESCRIBE on the transactional id '{name}'"
        )
        allow(ResourceType.TRANSACTIONAL_ID, name, AclOperation.DESCRIBE)
        found = until_allowed(lambda: limited.describe_transaction(name))
        assert (found.state, found.topic_partitions) == ("Ongoing", frozenset())  # of topics one may see
        assert [row.transactional_id for row in limited.transactions_of_prefix(name)] == [name]
        missing(
            lambda: limited.force_terminate_transaction(name),
            AuthorizationError,
            f"WRITE on the transactional id '{name}'",
        )
        missing(lambda: limited.describe_producers([partition]), AuthorizationError, f"DESCRIBE on the topic '{topic}'")
        allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
        until_allowed_or(lambda: limited.describe_producers([partition]), f"READ on the topic '{topic}'")
        allow(ResourceType.TOPIC, topic, AclOperation.READ)
        (producer,) = until_allowed(lambda: limited.describe_producers([partition]))[partition]
        assert producer.current_transaction_start_offset == 0
        abort = lambda: limited.abort_transaction(partition, start_offset=0)  # noqa: E731
        missing(abort, AuthorizationError, "ALTER on the cluster")
        allow(ResourceType.BROKER, "kafka-cluster", AclOperation.ALTER)
        until_allowed(abort)
        assert read_committed({"bootstrap.servers": kafka.bootstrap_servers}, topic) == []
    owner.close(timeout_s=0)
