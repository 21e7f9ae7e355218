"""Test databases, which can be dropped or copied only while no pool has connections to them.

A copy, which `manage.py test --parallel` makes for each process, gets its own transactional ids: a migration that
publishes has tied the original ids to the original database.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from django.db.backends.base.creation import BaseDatabaseCreation

from dualwrite.recipes.django.pools import close_pools, schema_of
from dualwrite.recipes.sql.identity_table import IDENTITY_TABLE
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE

_TIED_TO_THE_DATABASE: Final = (IDENTITY_TABLE, STATE_TABLE, LEASE_TABLE, OUTBOX_TABLE)


class ClosesPools(BaseDatabaseCreation):
    """A mixin for the `DatabaseCreation` of each ENGINE with dual writes; it comes first among the bases."""

    def _clone_test_db(self, suffix: str, *arguments: Any, **keywords: Any) -> None:
        close_pools(self.connection.alias)
        super()._clone_test_db(suffix, *arguments, **keywords)  # type: ignore[misc]  # the stubs lack it
        clone = self.connection.copy()
        clone.settings_dict["NAME"] = self.get_test_db_clone_settings(suffix)["NAME"]
        forget_dual_writes(clone)

    def _destroy_test_db(self, *arguments: Any, **keywords: Any) -> None:
        close_pools(self.connection.alias)
        super()._destroy_test_db(*arguments, **keywords)  # type: ignore[misc]  # the stubs lack it


def forget_dual_writes(connection: Any) -> None:
    """Empty the tables of dual writes in a copy of a test database."""
    engine: sa.Engine = connection.new_engine()
    schema = schema_of(connection)
    try:
        with engine.begin() as transaction:
            inspector = sa.inspect(transaction)
            for name in _TIED_TO_THE_DATABASE:
                if inspector.has_table(name, schema=schema):
                    transaction.execute(sa.delete(sa.table(name, schema=schema)))
    finally:
        engine.dispose()
