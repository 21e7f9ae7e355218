"""`DatabaseWrapper`, as Django wants to find it in an ENGINE."""

from __future__ import annotations

from django.db.backends.mysql import base

from dualwrite.recipes.django.mysql.wrapper import MySqlDualWrites


class DatabaseWrapper(MySqlDualWrites, base.DatabaseWrapper):
    """Django's for MySQL and MariaDB, with dual writes."""
