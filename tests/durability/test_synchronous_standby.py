"""COMMIT waits for a synchronous standby that is away.

Kafka learns of a dual write only once it is durable, however the wait ends, so that a failover leaves both sides as
one.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Outbox
from dualwrite.errors import NotDurableError, OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.psycopg.commit_message import PsycopgCommitMessage
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from tests.durability.faces import AWAITED, TABLE, TOPIC, Face, Writing, closed_whatever, rows
from tests.support.conditions import until
from tests.support.postgres_pair import PostgresPair
from tests.support.topics import read_topic
from tests.support.writers import KINDS

ID = "writer"
OTHERS = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "psycopg"))


@pytest.fixture
def face(kind: str, pair: PostgresPair, emulator: Emulator) -> Iterator[Face]:
    """One dual write is done, the standby is away."""
    pair.primary.ask(TABLE)
    made = Face(kind, pair.primary.url, emulator.bootstrap_servers, ID)
    made.write(1)
    pair.standby.crash()
    yield made
    closed_whatever(made)


def records(emulator: Emulator) -> list[int]:
    return [int(value) for _, value in read_topic(emulator.bootstrap_servers, TOPIC)]


def begun(face: Face, pair: PostgresPair) -> Writing:
    """A dual write whose COMMIT waits for the standby."""
    writing = Writing(face, 2)
    until(lambda: pair.primary.waiting_backends == 1)
    return writing


def successor(kind: str, node_url: object, emulator: Emulator) -> Face:
    return Face(kind, node_url, emulator.bootstrap_servers, ID)  # type: ignore[arg-type]


def assert_both_sides_agree(pair: PostgresPair, emulator: Emulator, expected: list[int], kind: str) -> None:
    """After a failover, once the id has been recovered there."""
    after = successor(kind, pair.fail_over().url, emulator)
    try:
        after.recover()
        assert rows(pair.standby.url) == expected
        assert records(emulator) == expected
        after.write(3)
    finally:
        after.close()
    assert rows(pair.standby.url) == records(emulator) == [*expected, 3]


@pytest.mark.parametrize("kind", AWAITED, indirect=True)
def test_a_commit_that_waits_is_not_cancelled_with_its_task(
    face: Face, kind: str, pair: PostgresPair, emulator: Emulator
) -> None:
    writing = begun(face, pair)
    face.cancel()
    assert writing.ended() is not None
    assert pair.primary.waiting_backends == 1
    with pytest.raises(OutcomeUnknown):
        face.recover()
    assert_both_sides_agree(pair, emulator, [1], kind)


@pytest.mark.parametrize(
    ("kind", "end"),
    [*((kind, "pg_cancel_backend") for kind in KINDS), ("psycopg", "pg_terminate_backend")],
    indirect=["kind"],
)
def test_kafka_is_not_told_of_a_commit_whose_wait_was_ended(
    face: Face, kind: str, pair: PostgresPair, emulator: Emulator, end: str
) -> None:
    writing = begun(face, pair)
    pair.primary.ask(f"SELECT {end}(pid) {WAITING}")
    assert isinstance(writing.ended(), OutcomeUnknown)
    assert rows(pair.primary.url) == [1, 2]
    with pytest.raises(OutcomeUnknown, match="not durable"):
        face.recover()
    assert records(emulator) == [1]
    assert_both_sides_agree(pair, emulator, [1], kind)


@pytest.mark.parametrize("kind", ["psycopg-awaited", "sqlalchemy"], indirect=True)
def test_kafka_is_told_once_the_standby_has_it(face: Face, kind: str, pair: PostgresPair, emulator: Emulator) -> None:
    writing = begun(face, pair)
    pair.primary.ask(f"SELECT pg_cancel_backend(pid) {WAITING}")
    assert isinstance(writing.ended(), OutcomeUnknown)
    pair.start_standby()
    assert [found.outcome for found in face.recover()] == [Outcome.COMMITTED]
    assert records(emulator) == [1, 2]
    assert_both_sides_agree(pair, emulator, [1, 2], kind)


@pytest.mark.parametrize(
    ("kind", "end"),
    [("psycopg", "restarted"), ("sqlalchemy", "restarted"), ("asyncpg", "terminated")],
    indirect=["kind"],
)
def test_another_process_does_not_tell_kafka_before_the_decision_is_durable(
    face: Face, kind: str, pair: PostgresPair, emulator: Emulator, end: str
) -> None:
    writing = begun(face, pair)
    if end == "terminated":
        pair.primary.ask(f"SELECT pg_terminate_backend(pid) {WAITING}")
    else:
        pair.primary.crash()
    assert isinstance(writing.ended(), OutcomeUnknown)
    face.close()
    if end == "restarted":
        pair.primary.start()
    assert rows(pair.primary.url) == [1, 2]
    other = successor(kind, pair.primary.url, emulator)
    with pytest.raises(NotDurableError, match="nothing was sent to Kafka"):
        other.recover()
    with pytest.raises(NotDurableError):
        other.write(4)
    closed_whatever(other)
    assert records(emulator) == [1]
    assert_both_sides_agree(pair, emulator, [1], kind)


@pytest.mark.parametrize(
    "settings",
    [{"transactional_id": ID}, {"prefix": ID, "delivery": Outbox(publishes=False)}],
    ids=["direct", "outbox"],
)
def test_a_primary_that_was_cut_off_does_not_show_a_rollback(
    pair: PostgresPair, emulator: Emulator, settings: dict[str, Any]
) -> None:
    """The standby has taken over and has the commit; a list of hosts leads to the old primary."""
    pair.primary.ask(TABLE)
    reached, used = [pair.primary], list[psycopg.Connection[Any]]()
    send = PsycopgCommitMessage.send

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(host=str(reached[0].directory), user="postgres", dbname="postgres", autocommit=True)

    def new_writer() -> PsycopgDualWriter:
        return PsycopgDualWriter(
            connect, bootstrap_servers=emulator.bootstrap_servers, resolve_timeout_ms=2_000, **settings
        )

    def write(writer: PsycopgDualWriter, number: int) -> None:
        with writer.transaction() as tx:
            used.append(tx.connection)
            tx.connection.execute("INSERT INTO events VALUES (%s)", (number,))
            tx.send(TOPIC, str(number))

    def lose(message: PsycopgCommitMessage) -> None:
        send(message)
        if message.connection is used[-1]:  # and not that of a lease
            reached[0] = pair.primary
            pair.standby.ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}")
            message.connection.pgconn.finish()
            raise psycopg.OperationalError("the response was lost")

    with new_writer() as before:
        write(before, 1)
    pair.standby.promote()
    reached[0] = pair.standby
    with new_writer() as writer:
        with pytest.MonkeyPatch.context() as patched, pytest.raises(OutcomeUnknown):
            patched.setattr(PsycopgCommitMessage, "send", lose)
            write(writer, 2)
        reached[0] = pair.standby
        pair.primary.crash()  # its COMMITs wait for ever
        writer.recover()
        write(writer, 3)
    assert rows(pair.standby.url) == [1, 2, 3]
    assert records(emulator) == ([] if "delivery" in settings else [1, 2, 3])


def test_a_role_without_rights_can_make_a_row_durable(pair: PostgresPair, emulator: Emulator) -> None:
    pair.primary.ask(TABLE)
    with_all = Face("sqlalchemy", pair.primary.url, emulator.bootstrap_servers, ID)
    with_all.write(1)
    with_all.close()
    pair.primary.ask("CREATE ROLE clerk LOGIN")
    pair.primary.ask(
        "GRANT SELECT, INSERT, UPDATE ON kafka_transaction_state, kafka_transaction_database, events TO clerk"
    )
    clerk = Face("psycopg", pair.primary.url.set(username="clerk"), emulator.bootstrap_servers, ID)
    assert clerk.recover() == []
    clerk.write(2)
    clerk.close()
    assert rows(pair.primary.url) == records(emulator) == [1, 2]


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"], indirect=True)
def test_a_commit_that_waits_is_not_cancelled_by_a_key(
    face: Face, kind: str, pair: PostgresPair, emulator: Emulator
) -> None:
    def interrupt() -> None:
        until(lambda: pair.primary.waiting_backends == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job
    try:
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            face.write(2)
        interrupting.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert pair.primary.waiting_backends == 1
    with pytest.raises(OutcomeUnknown):
        face.recover()
    assert_both_sides_agree(pair, emulator, [1], kind)
