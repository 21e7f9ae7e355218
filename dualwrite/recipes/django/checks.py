"""`manage.py check`: the settings, each mistake as a sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from dualwrite.errors import ConfigError
from dualwrite.recipes.django.pools import SETTING, new_pool, settings_of
from dualwrite.recipes.django.wrapper import DualWriteWrapper

_KEEPS_A_SNAPSHOT: Final = ("REPEATABLE READ", "SERIALIZABLE")


def check_settings(app_configs: Any = None, databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return the mistakes in DUALWRITE. Connects only to `databases`, as Django requires of checks."""
    return list(_messages(frozenset(databases or ())))


def _messages(may_be_asked: Collection[str]) -> Iterator[CheckMessage]:
    of_all = getattr(settings, SETTING, {})
    if not isinstance(of_all, Mapping):
        yield Error(f"{SETTING} is a dict of dicts, by the aliases of DATABASES, not {of_all!r}.", id="dualwrite.E001")
        return
    for alias in of_all:
        if alias in connections.settings:
            yield from _of_alias(connections[alias], may_be_asked)
        else:
            yield Error(
                f"{SETTING} has an entry for {alias!r}, which is not in DATABASES.",
                hint=f"The aliases of DATABASES are {', '.join(map(repr, connections.settings))}.",
                id="dualwrite.E002",
            )
    for alias in connections.settings:
        if alias not in of_all and isinstance(connections[alias], DualWriteWrapper):
            yield Warning(
                f"The database {alias!r} has an ENGINE with dual writes, and {SETTING} has no entry for it: send() "
                "raises ConfigError there.",
                hint=f'Add "{alias}": {{"bootstrap_servers": ...}} to {SETTING}, or use Django\'s own ENGINE.',
                id="dualwrite.W001",
            )


def _of_alias(connection: BaseDatabaseWrapper, may_be_asked: Collection[str]) -> Iterator[CheckMessage]:
    alias = connection.alias
    if not isinstance(connection, DualWriteWrapper):
        yield Error(
            f"{SETTING} has an entry for {alias!r}, whose ENGINE {connection.settings_dict['ENGINE']!r} does not "
            "support dual writes.",
            hint="Set its ENGINE to 'dualwrite.recipes.django.postgresql' or 'dualwrite.recipes.django.mysql'.",
            id="dualwrite.E003",
        )
        return
    try:
        settings_of(alias)
        new_pool(connection).close()
    except ConfigError as error:
        yield Error(f"{SETTING}[{alias!r}] cannot be used: {error}", id="dualwrite.E004")
    yield from _of_isolation_level(connection, alias in may_be_asked)


def _of_isolation_level(connection: DualWriteWrapper, may_be_asked: bool) -> Iterator[CheckMessage]:
    level, asked = connection.isolation_level_name, None
    if level is None and may_be_asked:
        with suppress(DatabaseError):  # for instance, it does not exist: another check, or the command, says so
            asked = connection.ask_for_isolation_level()
    known = level or asked
    if (known or connection.default_isolation_level) not in _KEEPS_A_SNAPSHOT:
        return
    under = known or f"the isolation level of its server, whose default is {connection.default_isolation_level}"
    yield Warning(
        f"The database {connection.alias!r} runs its transactions under {under}. The snapshot may be older than the "
        "state row that a dual write locks: its COMMIT then raises a serialization failure, with both sides unchanged.",
        hint="Repeat such a request, or use READ COMMITTED with select_for_update()."
        + ("" if known else f" `manage.py check --database {connection.alias}` asks the server."),
        id="dualwrite.W002",
    )
