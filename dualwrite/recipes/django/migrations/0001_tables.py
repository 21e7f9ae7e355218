"""The tables of dual writes, by the statements that all recipes share."""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

from django.db import migrations

from dualwrite.recipes.django.pools import schema_of
from dualwrite.recipes.django.wrapper import DualWriteWrapper
from dualwrite.recipes.sql.pinned_tables import PinnedTables, quoted

_FILES: Final = ("schema.sql", "pool_schema.sql")


def create_tables(apps: Any, schema_editor: Any) -> None:
    """Create the tables that are missing, on each database whose ENGINE has dual writes."""
    if not isinstance(schema_editor.connection, DualWriteWrapper):
        return
    schema = schema_of(schema_editor.connection)
    for file in _FILES:
        text = resources.files("dualwrite.recipes.sql").joinpath(file).read_text()
        schema_editor.execute(text if schema is None else PinnedTables(schema, quoted(schema)).sql(text), None)


class Migration(migrations.Migration):
    """Undoing it leaves the tables: without their rows, what is in doubt would be aborted."""

    operations = (migrations.RunPython(create_tables, migrations.RunPython.noop),)
