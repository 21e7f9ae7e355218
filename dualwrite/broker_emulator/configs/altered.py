"""Settings that were altered while the cluster ran, of all resources, stored for the next start."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from dualwrite.broker_emulator.storage.storage import Storage

_KIND: Final = "config"


class ConfigResource(IntEnum):
    """The types of resources that have settings, with Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


ALL_BROKERS: Final = ""
"""The name of the BROKER resource whose settings apply to every broker without its own value."""


class AlteredConfigs:
    """Altered settings by resource, as text."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def of(self, resource: ConfigResource, name: str) -> Mapping[str, str]:
        """Return the altered settings of a resource; empty if it was never altered."""
        found: Mapping[str, str] = self._storage.kept(_KIND).get(_key(resource, name), {})
        return found

    def was_altered(self, resource: ConfigResource, name: str) -> bool:
        """Return whether a resource was ever altered, even if nothing is set now."""
        return _key(resource, name) in self._storage.kept(_KIND)

    def names(self, resource: ConfigResource) -> list[str]:
        """Return the names of the resources of a type that have altered settings, sorted."""
        keys = (key.partition(":") for key, configs in self._storage.kept(_KIND).items() if configs)
        return sorted(name for kind, _, name in keys if kind == str(int(resource)))

    def replace(self, resource: ConfigResource, name: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a resource. Raises StorageError, and then nothing has changed."""
        self._storage.keep(_KIND, _key(resource, name), dict(configs))

    def forget(self, resource: ConfigResource, name: str) -> None:
        """Remove a resource, as if it had never been altered. Raises StorageError."""
        if self.was_altered(resource, name):
            self._storage.keep(_KIND, _key(resource, name), None)


def _key(resource: ConfigResource, name: str) -> str:
    return f"{int(resource)}:{name}"
