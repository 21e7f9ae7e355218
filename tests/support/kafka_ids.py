"""Transactional ids as Kafka sees them: with the suffix of the database."""

from __future__ import annotations

import sqlalchemy as sa

from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase, create_state_table


def kafka_id_of(engine: sa.Engine, transactional_id: str) -> str:
    """Return an id as Kafka sees it, creating the tables of its database where they are missing."""
    create_state_table(engine)
    return SqlAlchemyDatabase(engine).identity().kafka_id(transactional_id)
