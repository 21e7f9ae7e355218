"""`DatabaseWrapper`, under the name that Django requires of an ENGINE."""

from __future__ import annotations

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import base

from dualwrite.recipes.django.checks import check_settings
from dualwrite.recipes.django.postgresql.wrapper import PostgresDualWrites

if not base.is_psycopg3:  # type: ignore[attr-defined]  # the stubs lack it
    raise ImproperlyConfigured("dualwrite.recipes.django.postgresql needs psycopg 3: pip install 'dualwrite[django]'")


class DatabaseWrapper(PostgresDualWrites, base.DatabaseWrapper):
    """Django's PostgreSQL wrapper with dual writes."""


checks.register(check_settings, "dualwrite")  # also without the app in INSTALLED_APPS
