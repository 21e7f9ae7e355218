"""`manage.py check`: the settings, each mistake as a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from dualwrite.errors import ConfigError
from dualwrite.recipes.django.pools import SETTING, entries, new_pool, settings_of
from dualwrite.recipes.django.publishing import published
from dualwrite.recipes.django.wrapper import DualWriteWrapper


def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Return the mistakes in DUALWRITE. Connects to no database."""
    return list(_messages())


def check_models(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Return the models with `@publish` whose rows go to a database without dual writes, so that no save succeeds."""
    return list(_of_models())


def _of_models() -> Iterator[CheckMessage]:
    for model in dict.fromkeys(each.model for each in published):
        alias = router.db_for_write(model)
        if alias not in entries() or not isinstance(connections[alias], DualWriteWrapper):
            yield Error(
                f"{model._meta.label} has @publish, and its database {alias!r} is not set up for dual writes.",
                hint=f"Set its ENGINE to one with dual writes, and add an entry for {alias!r} to {SETTING}.",
                obj=model,
                id="dualwrite.E005",
            )


def check_deployment(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Return the settings in DUALWRITE that are for development: `manage.py check --deploy`."""
    return [
        message for alias, given in entries().items() if isinstance(given, Mapping) for message in _risks(alias, given)
    ]


def _risks(alias: str, given: Mapping[str, Any]) -> Iterator[CheckMessage]:
    if given.get("create_table", True):
        yield Warning(
            f"{SETTING}[{alias!r}] lets each process create missing tables, with the rights of the application.",
            hint='Create them with `manage.py migrate`, and set "create_table": False.',
            id="dualwrite.W003",
        )
    if str(given.get("security_protocol", "PLAINTEXT")).upper() in ("PLAINTEXT", "SASL_PLAINTEXT"):
        yield Warning(
            f"{SETTING}[{alias!r}] sends records to Kafka without encryption.",
            hint='Set "security_protocol" to "SSL" or "SASL_SSL".',
            id="dualwrite.W004",
        )


def _messages() -> Iterator[CheckMessage]:
    of_all = getattr(settings, SETTING, {})
    if not isinstance(of_all, Mapping):
        yield Error(f"{SETTING} is a dict of dicts, by the aliases of DATABASES, not {of_all!r}.", id="dualwrite.E001")
        return
    for alias in of_all:
        if alias in connections.settings:
            yield from _of_alias(connections[alias])
        else:
            yield Error(
                f"{SETTING} has an entry for {alias!r}, which is not in DATABASES.",
                hint=f"The aliases of DATABASES are {', '.join(map(repr, connections.settings))}.",
                id="dualwrite.E002",
            )
    if of_all and not apps.is_installed("dualwrite.recipes.django"):
        yield Warning(
            "'dualwrite.recipes.django' is not in INSTALLED_APPS: `migrate` creates no tables, and there is no "
            "`manage.py dualwrite_recover`.",
            hint="Add it to INSTALLED_APPS.",
            id="dualwrite.W002",
        )
    for alias in connections.settings:
        if alias not in of_all and isinstance(connections[alias], DualWriteWrapper):
            yield Warning(
                f"The database {alias!r} has an ENGINE with dual writes, and {SETTING} has no entry for it: send() "
                "raises ConfigError there.",
                hint=f'Add "{alias}": {{"bootstrap_servers": ...}} to {SETTING}, or use Django\'s own ENGINE.',
                id="dualwrite.W001",
            )


def _of_alias(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
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
