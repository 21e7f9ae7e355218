"""`DatabaseWrapper`, as Django wants to find it in an ENGINE."""

from __future__ import annotations

from django.db.backends.mysql import base, creation

from dualwrite.recipes.django.creation import ClosesPools
from dualwrite.recipes.django.mysql.wrapper import MySqlDualWrites


class DatabaseCreation(ClosesPools, creation.DatabaseCreation):
    """Django's, which closes the pool first."""


class DatabaseWrapper(MySqlDualWrites, base.DatabaseWrapper):
    """Django's for MySQL and MariaDB, with dual writes."""

    creation_class = DatabaseCreation
