"""The data and the state row are committed together or not at all, even if the block fails."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from dualwrite.errors import TransactionDoomedError, TransactionEndedInsideError
from dualwrite.testing.conformance.site import DEADLINE_S, Site, events

AFTERWARDS = "sent after the deadlock"


class OrdinaryError(Exception):
    """Raised in a block by these tests."""


def test_a_block_that_ends_normally_writes_both(site: Site) -> None:
    with site.writer() as writer:
        with writer.transaction() as tx:
            first = site.put(tx)
        with writer.transaction() as tx:
            second = site.put(tx)
    site.assert_both_hold(first, second)


def test_an_exception_writes_neither(site: Site) -> None:
    with site.writer() as writer:
        with pytest.raises(OrdinaryError), writer.transaction() as tx:
            site.put(tx)
            raise OrdinaryError
        with writer.transaction() as tx:
            text = site.put(tx)
    site.assert_both_hold(text)


def test_a_swallowed_error_writes_neither(site: Site) -> None:
    """PostgreSQL would roll back at COMMIT without an error; other databases would commit the rest."""
    with site.writer() as writer:
        with pytest.raises(TransactionDoomedError), writer.transaction() as tx:
            site.put(tx)
            with pytest.raises(sa.exc.DBAPIError):
                tx.connection.execute(sa.text("SELECT nothing FROM no_such_table"))
        with writer.transaction() as tx:
            text = site.put(tx)
    site.assert_both_hold(text)


def test_rolling_back_to_a_savepoint_removes_the_records_sent_after_it(site: Site) -> None:
    with site.writer() as writer, writer.transaction() as tx:
        first = site.put(tx)
        with pytest.raises(sa.exc.DBAPIError), tx.session.begin_nested():
            tx.send(site.topic, value="rolled back")
            tx.connection.execute(sa.text("SELECT nothing FROM no_such_table"))
        second = site.put(tx)
    site.assert_both_hold(first, second)


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_the_block_cannot_be_ended_from_inside(site: Site, statement: str) -> None:
    with site.writer() as writer, pytest.raises(TransactionEndedInsideError), writer.transaction() as tx:
        site.put(tx)
        tx.connection.execute(sa.text(statement))
    site.assert_both_hold()


def test_ddl_in_the_block_belongs_to_it_or_is_refused(site: Site) -> None:
    """MySQL, MariaDB and Oracle silently commit before DDL: the data would be there without the records."""
    table = sa.Table("dualwrite_conformance_ddl", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    try:
        with site.writer() as writer:
            with pytest.raises((OrdinaryError, TransactionEndedInsideError)), writer.transaction() as tx:
                site.put(tx)
                table.create(tx.connection)
                raise OrdinaryError
            assert not sa.inspect(site.direct).has_table(table.name)
        site.assert_both_hold()
    finally:
        table.drop(site.direct, checkfirst=True)


def test_a_deadlock_writes_both_or_neither(site: Site) -> None:
    """The database rolls back one of two deadlocked transactions as a whole, even inside a savepoint."""
    with site.direct.begin() as connection:
        connection.execute(sa.insert(events), [{"id": 1001, "body": "x"}, {"id": 1002, "body": "y"}])
    if site.direct.dialect.name == "sqlite":
        pytest.skip("one lock for the whole database: two transactions cannot deadlock")
    written = _meet_in_a_deadlock(site)
    in_table = [text for text in site.in_table() if text not in ("x", "y", "changed", "weight")]
    assert in_table == [text for text in written if text != AFTERWARDS]
    assert site.in_topic() == written


def _meet_in_a_deadlock(site: Site) -> list[str]:
    """Run a dual write into a deadlock; return the events that it should have written."""

    def change(connection: sa.Connection, number: int) -> None:
        connection.execute(sa.update(events).where(events.c.id == number).values(body="changed"))

    def overtake() -> None:
        try:
            change(rival, 1001)
            rival.commit()
        except sa.exc.DBAPIError:
            rival.rollback()

    written: list[str] = []
    rival = site.direct.connect()
    thread = threading.Thread(target=overtake, daemon=True)
    try:
        with site.writer() as writer, writer.transaction() as tx:
            written.append(site.put(tx))
            change(tx.connection, 1001)
            change(rival, 1002)
            # MySQL rolls back the transaction with fewer changes: that has to be the dual write
            rival.execute(sa.insert(events), [{"id": number, "body": "weight"} for number in range(2000, 2050)])
            thread.start()
            try:
                with tx.session.begin_nested():
                    change(tx.connection, 1002)
            except sa.exc.SQLAlchemyError:
                tx.send(site.topic, value=AFTERWARDS)
                written.append(AFTERWARDS)
    except (sa.exc.SQLAlchemyError, TransactionDoomedError, TransactionEndedInsideError):
        written.clear()
    thread.join(DEADLINE_S)
    rival.close()
    return written
