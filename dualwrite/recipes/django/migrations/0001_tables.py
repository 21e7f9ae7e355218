"""The tables of dual writes, created by the statements that all recipes share."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from dualwrite.recipes.django.pools import schema_of
from dualwrite.recipes.django.wrapper import DualWriteWrapper


def create_tables(apps: Any, schema_editor: Any) -> None:
    """Create missing tables, on each database whose ENGINE has dual writes."""
    connection = schema_editor.connection
    if isinstance(connection, DualWriteWrapper):
        connection.create_tables(schema_editor, schema_of(connection))


class Migration(migrations.Migration):
    """Creates the tables. Undoing it keeps them: without their rows, transactions in doubt would be aborted."""

    operations = (migrations.RunPython(create_tables, migrations.RunPython.noop),)
