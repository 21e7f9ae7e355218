"""`DatabaseWrapper`, as Django wants to find it in an ENGINE."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import base, creation

from dualwrite.recipes.django.creation import ClosesPools
from dualwrite.recipes.django.forks import abandon, in_each_child
from dualwrite.recipes.django.postgresql.wrapper import PostgresDualWrites

if not base.is_psycopg3:  # type: ignore[attr-defined]  # the stubs lack it
    raise ImproperlyConfigured("dualwrite.recipes.django.postgresql needs psycopg 3: pip install 'dualwrite[django]'")


class DatabaseCreation(ClosesPools, creation.DatabaseCreation):
    """Django's, which closes the pool first."""


class DatabaseWrapper(PostgresDualWrites, base.DatabaseWrapper):
    """Django's PostgreSQL with dual writes."""

    creation_class = DatabaseCreation

    _connection_pools: ClassVar[dict[str, Any]] = {}
    """By alias, the pools of `OPTIONS["pool"]`, since Django 5.1; other ENGINEs have theirs."""

    @classmethod
    def leave_pools(cls) -> None:
        """Leave those of the parent to it, in a forked child."""
        abandon(dict(cls._connection_pools))
        cls._connection_pools.clear()


in_each_child(DatabaseWrapper.leave_pools)
