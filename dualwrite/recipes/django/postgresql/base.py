"""`DatabaseWrapper`, as Django wants to find it in an ENGINE."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import base, creation

from dualwrite.recipes.django.pools import close_pools
from dualwrite.recipes.django.wrapper import DualWriteWrapper

if not base.is_psycopg3:  # type: ignore[attr-defined]  # the stubs lack it
    raise ImproperlyConfigured("dualwrite.recipes.django.postgresql needs psycopg 3: pip install 'dualwrite[django]'")


class DatabaseCreation(creation.DatabaseCreation):
    """Django's, which can drop or copy a test database only while the pool has no connection to it."""

    def _clone_test_db(self, *arguments: Any, **keywords: Any) -> None:
        close_pools(self.connection.alias)
        super()._clone_test_db(*arguments, **keywords)  # type: ignore[misc]  # the stubs lack it

    def _destroy_test_db(self, *arguments: Any, **keywords: Any) -> None:
        close_pools(self.connection.alias)
        super()._destroy_test_db(*arguments, **keywords)  # type: ignore[misc]  # the stubs lack it


class DatabaseWrapper(DualWriteWrapper, base.DatabaseWrapper):
    """Django's PostgreSQL with dual writes."""

    creation_class = DatabaseCreation
