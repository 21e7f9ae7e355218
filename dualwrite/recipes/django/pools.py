"""The pools of transactional ids of this process: one for each database with settings in DUALWRITE."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.core.signals import setting_changed

from dualwrite.errors import ConfigError
from dualwrite.recipes.django.forks import in_each_child
from dualwrite.recipes.django.transaction import Pool

_log = logging.getLogger(__name__)

SETTING: Final = "DUALWRITE"

_CLOSE_WITHIN_S: Final = 5.0
"""How long the end of a process waits for other threads to commit."""

_Key = tuple[str, Any, Any, Any]


_pools: dict[_Key, Pool] = {}
_making = threading.Lock()


def pool_of(wrapper: Any) -> Pool:
    """Return the pool for a connection's database, shared by the threads of a process. Raises ConfigError."""
    key = _key_of(wrapper)
    pool = _pools.get(key)
    if pool is None:
        with _making:
            pool = _pools.get(key)
            if pool is None:
                pool = _pools[key] = new_pool(wrapper)
    return pool


def new_pool(wrapper: Any) -> Pool:
    """Make a pool from the settings of a connection's alias; it connects to nothing yet. Raises ConfigError."""
    given = settings_of(wrapper.alias)
    if "transactional_id" in given:
        raise ConfigError(
            f"{SETTING}[{wrapper.alias!r}] has transactional_id, which cannot be set here: a pool makes its ids from "
            "`prefix`"
        )
    pool: Pool = wrapper.new_writer_pool({"prefix": f"django-{wrapper.alias}"} | given)
    return pool


def settings_of(alias: str) -> dict[str, Any]:
    """Return the DUALWRITE entry of an alias. Raises ConfigError if it is missing or not a dict."""
    of_all = getattr(settings, SETTING, {})
    if not isinstance(of_all, Mapping) or not isinstance(of_all.get(alias, {}), Mapping):
        raise ConfigError(f"{SETTING} is a dict of dicts, by the aliases of DATABASES, not {of_all!r}")
    if alias not in of_all:
        raise ConfigError(
            f"{SETTING} has no entry for the database {alias!r}, so nothing is published with its transactions: add "
            f'"{alias}": {{"bootstrap_servers": ...}}'
        )
    return dict(of_all[alias])


def entries() -> Mapping[str, Any]:
    """Return DUALWRITE by alias, empty if it is not a mapping, which the checks say."""
    of_all = getattr(settings, SETTING, {})
    return of_all if isinstance(of_all, Mapping) else {}


def schema_of(wrapper: Any) -> str | None:
    """Return the schema of the tables of dual writes; None if unqualified names find them."""
    return settings_of(wrapper.alias).get("schema") if wrapper.alias in entries() else None


def close_pools(alias: str | None = None) -> None:
    """Close the pools, of all aliases or of one; the next transaction with records makes a new one."""
    with _making:
        closing = [_pools.pop(key) for key in list(_pools) if alias in (None, key[0])]
    for pool in closing:
        pool.close(_CLOSE_WITHIN_S)


def _key_of(wrapper: Any) -> _Key:
    """Return a key that also tells databases of one alias apart: a test runner changes NAME."""
    of_wrapper = wrapper.settings_dict
    return wrapper.alias, of_wrapper["NAME"], of_wrapper["HOST"], of_wrapper["PORT"]


def close_at_exit() -> None:
    """Close all pools, because the process ends; never raises."""
    try:
        close_pools()
    except Exception:
        _log.warning(
            "a pool of transactional ids was not closed cleanly; its leases expire by themselves", exc_info=True
        )


def _on_setting(*, setting: str, **_: Any) -> None:
    if setting == SETTING:
        close_pools()


def _unlock_in_child() -> None:
    global _making
    _making = threading.Lock()  # the old one may be held by a thread that does not exist in the child


atexit.register(close_at_exit)
setting_changed.connect(_on_setting, dispatch_uid="dualwrite.recipes.django")
in_each_child(_unlock_in_child)
