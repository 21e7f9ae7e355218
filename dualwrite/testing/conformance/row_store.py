"""The state rows, locked and read by the steps of a dual write, in transactions that are none."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.database_errors import driver_error
from dualwrite.recipes.core.store import not_as_locked
from dualwrite.recipes.sql import postgres
from dualwrite.recipes.sql.postgres_steps import refusal_in
from dualwrite.recipes.sqlalchemy.own_statements import own_text
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.steps import OnPostgres


class RowStore(SqlAlchemyDatabase):
    """Locks, reads and writes state rows in the transaction of a `sqlalchemy.Connection`, which its caller ends."""

    def lock(self, transaction: sa.Connection, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        assert self.pinned is not None, "it raises otherwise"
        return blocking.run(self.steps(transaction).lock(transactional_id, timeout_ms=timeout_ms))

    def read(self, transaction: sa.Connection, transactional_id: str) -> PreparedTxnState:
        return blocking.run(self.steps(transaction).read(transactional_id))

    def read_manifest(self, transaction: sa.Connection, transactional_id: str) -> str:
        return blocking.run(self.steps(transaction).read_manifest(transactional_id))

    def write(
        self,
        transaction: sa.Connection,
        transactional_id: str,
        *,
        previous: PreparedTxnState,
        new: PreparedTxnState,
        manifest: str,
    ) -> None:
        steps = self.steps(transaction)
        if not isinstance(steps, OnPostgres):
            steps.write_now(transactional_id, previous=previous, new=new, manifest=manifest)
            return
        row = {"id": transactional_id, "previous": str(previous), "new": str(new), "manifest": manifest or None}
        token = steps.mark or postgres.new_mark()
        try:
            proof = {"mark": steps.mark, "token": token}
            transaction.execute(own_text(self.pinned.sql(postgres.WRITE)), row | proof)
        except DBAPIError as error:
            refused = not_as_locked(transactional_id, previous, past=steps.driver_name)
            refusals = {**steps.refusals(transactional_id, previous), postgres.NOT_AS_LOCKED: lambda: refused}
            refusal = refusal_in(driver_error(error), token, refusals)
            if refusal is None:
                raise
            raise refusal from error
