from __future__ import annotations

from django.db.backends.postgresql import base

from dualwrite.recipes.django.postgresql.wrapper import PostgresDualWrites


class DatabaseWrapper(PostgresDualWrites, base.DatabaseWrapper):
    pass
