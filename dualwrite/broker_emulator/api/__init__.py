"""One file per API key, each of which registers what it answers; importing this package registers all of them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    if _module.name.startswith("k"):
        import_module(f"{__name__}.{_module.name}")
