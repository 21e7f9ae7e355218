"""The app: its migrations create the tables, its checks read the settings, its command recovers."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from dualwrite.recipes.django.checks import check_deployment, check_models, check_settings


class DualWriteConfig(AppConfig):
    """`dualwrite.recipes.django` in INSTALLED_APPS."""

    name = "dualwrite.recipes.django"
    label = "dualwrite"
    verbose_name = "Dual writes"

    def ready(self) -> None:
        checks.register(check_settings, "dualwrite")
        checks.register(check_models, "dualwrite")
        checks.register(check_deployment, "dualwrite", deploy=True)
