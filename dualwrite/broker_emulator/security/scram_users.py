"""SCRAM users: salted keys by user and mechanism, which survive a restart if there is a data directory."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from dualwrite.broker_emulator.storage.storage import Storage

if TYPE_CHECKING:  # its hash functions take time to import, and most clusters have no users
    from dualwrite.broker_emulator.security.sasl.scram import ScramCredential

_KIND: Final = "scram"


class ScramUsers:
    """The SCRAM users of a cluster. A change that cannot be stored raises StorageError and has no effect."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._users = {
            name: {mechanism: _from_json(kept) for mechanism, kept in by_mechanism.items()}
            for name, by_mechanism in storage.values(_KIND).items()
        }

    def names(self) -> list[str]:
        """Return the names of all users with a credential."""
        return sorted(self._users)

    def credentials(self, name: str) -> dict[str, ScramCredential]:
        """Return a user's credentials by mechanism; empty for an unknown user."""
        return self._users.get(name, {})

    def find(self, name: str, mechanism: str) -> ScramCredential | None:
        """Return the credential that a login as `name` must prove, or None."""
        return self.credentials(name).get(mechanism)

    def set(self, name: str, mechanism: str, credential: ScramCredential) -> None:
        """Add a user, or change its password."""
        self._keep(name, self.credentials(name) | {mechanism: credential})

    def remove(self, name: str, mechanism: str) -> None:
        """Remove a user's credential, if there is one."""
        others = {other: credential for other, credential in self.credentials(name).items() if other != mechanism}
        self._keep(name, others)

    def remove_user(self, name: str) -> None:
        """Remove a user with all credentials, if it exists."""
        self._keep(name, {})

    def set_password(self, name: str, password: str) -> None:
        """Add a user with this password for all SCRAM mechanisms."""
        from dualwrite.broker_emulator.security.sasl.scram import HASHES, ScramCredential

        self._keep(name, {mechanism: ScramCredential.of_password(mechanism, password) for mechanism in HASHES})

    def _keep(self, name: str, credentials: dict[str, ScramCredential]) -> None:
        value = {mechanism: _to_json(credential) for mechanism, credential in credentials.items()}
        self._storage.store_value(_KIND, name, value or None)
        if credentials:
            self._users[name] = credentials
        else:
            self._users.pop(name, None)


def _to_json(credential: ScramCredential) -> dict[str, Any]:
    return {
        "salt": base64.b64encode(credential.salt).decode(),
        "stored_key": base64.b64encode(credential.stored_key).decode(),
        "server_key": base64.b64encode(credential.server_key).decode(),
        "iterations": credential.iterations,
    }


def _from_json(kept: dict[str, Any]) -> ScramCredential:
    from dualwrite.broker_emulator.security.sasl.scram import ScramCredential

    salt, stored_key, server_key = (base64.b64decode(kept[name]) for name in ("salt", "stored_key", "server_key"))
    return ScramCredential(salt, stored_key, server_key, kept["iterations"])
