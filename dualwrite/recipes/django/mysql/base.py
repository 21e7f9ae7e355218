"""`DatabaseWrapper`, under the name that Django requires of an ENGINE."""

from __future__ import annotations

from typing import Any

from django.db.backends.mysql import base

from dualwrite.recipes.django.mysql.wrapper import MySqlDualWrites


class ReportingCursor(base.CursorWrapper):
    """Django's cursor. It reports the errors of results that are read only when it is closed, which Django ignores."""

    def nextset(self) -> Any:
        return self.cursor.reported(self.cursor.nextset)

    def close(self) -> Any:
        return self.cursor.reported(self.cursor.close)


class DatabaseWrapper(MySqlDualWrites, base.DatabaseWrapper):
    """Django's wrapper for MySQL and MariaDB, with dual writes."""

    def create_cursor(self, name: Any = None) -> Any:
        return ReportingCursor(self.connection.cursor())
