"""`DatabaseWrapper`, under the name that Django requires of an ENGINE."""

from __future__ import annotations

from django.core import checks
from django.db.backends.mysql import base

from dualwrite.recipes.django.checks import check_settings
from dualwrite.recipes.django.mysql.wrapper import MySqlDualWrites


class DatabaseWrapper(MySqlDualWrites, base.DatabaseWrapper):
    """Django's wrapper for MySQL and MariaDB, with dual writes."""


checks.register(check_settings, "dualwrite")  # also without the app in INSTALLED_APPS
