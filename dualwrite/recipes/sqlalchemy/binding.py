"""The Session or Connection on which a dual write runs, and whose transaction it ends."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from dualwrite.errors import IllegalStateError

Bind = Session | scoped_session[Session] | sa.Connection


class Binding:
    """The Connection on which a dual write runs; the binding to a Session is a subclass."""

    session: Session | None = None
    root: sa.RootTransaction | None = None
    """The Connection's transaction when `connect` was called."""

    def __init__(self, connection: sa.Connection, *, owned: bool) -> None:
        self._connection = connection
        self._owned = owned

    def connect(self) -> sa.Connection:
        self.root = self._connection.get_transaction() or self._connection.begin()
        return self._connection

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        if self._owned:
            self._connection.close()


class _SessionBinding(Binding):
    def __init__(self, session: Session, *, owned: bool) -> None:
        self.session = self._session = session
        self._owned = owned

    def connect(self) -> sa.Connection:
        connection = self._session.connection()
        self.root = connection.get_transaction()
        return connection

    def commit(self) -> None:
        self._session.commit()

    def rollback(self) -> None:
        if self._owned and self.root is not None and self.root.connection.get_transaction() is not self.root:
            self._session.close()  # ended on the Connection already; the Session would end it again
            return
        self._session.rollback()
        if self.root is not None and self.root.is_active:
            self.root.rollback()  # a Session that joined its Connection's transaction leaves it open

    def close(self) -> None:
        if self._owned:
            self._session.close()


def binding_of(bind: Bind, *, owned: bool) -> Binding:
    if isinstance(bind, sa.Connection):
        return Binding(bind, owned=owned)
    if not isinstance(bind, Session | scoped_session):
        raise IllegalStateError(f"a dual write runs on a Session or a Connection, not on {bind!r}; nothing was written")
    return _SessionBinding(bind() if isinstance(bind, scoped_session) else bind, owned=owned)
