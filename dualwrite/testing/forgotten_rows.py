"""Empty the tables of dual writes in a database that outlives the broker of a test."""

from __future__ import annotations

import sqlalchemy as sa

from dualwrite.recipes.sqlalchemy.outbox_table import kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import kafka_consumed_offset, kafka_transaction_lease

_TABLES = (kafka_transaction_state, kafka_transaction_lease, kafka_transaction_outbox, kafka_consumed_offset)


def forget_rows(database: sa.Engine | sa.URL | str) -> None:
    """Delete what names transactions and offsets of a cluster that is gone; the database keeps its suffix of ids."""
    engine = database if isinstance(database, sa.Engine) else sa.create_engine(database, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for table in _TABLES:
            if sa.inspect(connection).has_table(table.name):
                connection.execute(sa.delete(table))
