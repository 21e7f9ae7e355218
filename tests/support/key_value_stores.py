"""Key-value stores of the crash tests: a RocksDB in a directory, and a ZooKeeper that can be cut off on command."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry
from rocksdict import Rdict, WriteBatch

from dualwrite.recipes.stores.key_value import KeyValueDualWriter
from dualwrite.recipes.stores.rocksdb import STATE_COLUMN_FAMILY, RocksDbDualWriter
from dualwrite.recipes.stores.zookeeper import DEFAULT_STATE_PATH, ZooKeeperDualWriter, node_name
from dualwrite.testing.network_proxy import NetworkProxy
from tests.support.databases import unique
from tests.support.servers.zookeeper import ZooKeeperServer

_MULTI = (14).to_bytes(4, "big")  # the operation in a request, after its length and number


class KeyValueStore(Protocol):
    """An empty store, whose values are the events in the order of their keys."""

    address: str
    """The address for a worker process."""

    def writer(self, **settings: Any) -> KeyValueDualWriter[Any, Any]: ...

    def add(self, tx: Any, key: str, value: str) -> None:
        """One event, as a part of a dual write."""

    def values(self) -> list[str]: ...

    def state(self, transactional_id: str) -> str | None: ...

    def commit_as(self, transactional_id: str, state: str, events: dict[str, str]) -> None:
        """Commit as a dual write does, without one."""

    def let_go(self) -> None:
        """For a worker process that will open it."""

    def take_back(self) -> None: ...

    def close(self) -> None: ...


class RocksDbStore:
    def __init__(self, directory: str) -> None:
        self.address = directory
        self.take_back()

    def writer(self, **settings: Any) -> RocksDbDualWriter:
        return RocksDbDualWriter(self.db, **settings)

    def add(self, tx: Any, key: str, value: str) -> None:
        tx.put(key, value)

    def values(self) -> list[str]:
        return [str(value) for _, value in sorted(self.db.items())]

    def state(self, transactional_id: str) -> str | None:
        found = self.db.get_column_family(STATE_COLUMN_FAMILY).get(transactional_id.encode())
        return None if found is None else found.decode()

    def commit_as(self, transactional_id: str, state: str, events: dict[str, str]) -> None:
        if STATE_COLUMN_FAMILY not in Rdict.list_cf(self.address):
            self.db.create_column_family(STATE_COLUMN_FAMILY)
        batch = WriteBatch()
        for key, value in events.items():
            batch.put(key, value)
        batch.put(transactional_id.encode(), state.encode(), self.db.get_column_family_handle(STATE_COLUMN_FAMILY))
        self.db.write(batch)

    def let_go(self) -> None:
        self.db.close()

    def take_back(self) -> None:
        self.db = Rdict(self.address)

    def close(self) -> None:
        self.db.close()


class ZooKeeperStore:
    """A tree of its own on a real ZooKeeper, reached through a proxy; `direct` is a way that no fault touches."""

    def __init__(self, address: str, session_s: float = 4.0) -> None:
        hosts, _, self._root = address.partition("/")
        self.address = address
        self.state_path = f"/{self._root}{DEFAULT_STATE_PATH}"
        self.direct = KazooClient(hosts)
        self.direct.start()
        self.direct.ensure_path(f"/{self._root}/events")
        host, port = hosts.split(":")
        self.proxy = NetworkProxy((host, int(port)))
        self.client = KazooClient(f"127.0.0.1:{self.proxy.port}", timeout=session_s)
        self.client.start()

    @classmethod
    def on(cls, server: ZooKeeperServer) -> ZooKeeperStore:
        """Return a tree for a process that is not killed: its session outlives a stalled machine."""
        return cls(f"{server.hosts}/{unique('tree')}", session_s=10.0)

    def writer(self, *, client: KazooClient | None = None, **settings: Any) -> ZooKeeperDualWriter:
        return ZooKeeperDualWriter(client or self.client, state_path=self.state_path, **settings)

    def add(self, tx: Any, key: str, value: str) -> None:
        tx.create(f"/{self._root}/events/{key}", value.encode())

    def values(self) -> list[str]:
        names = sorted(self.direct.get_children(f"/{self._root}/events"))
        return [self.direct.get(f"/{self._root}/events/{name}")[0].decode() for name in names]

    def state(self, transactional_id: str) -> str | None:
        try:
            return str(self.direct.get(self._state_node(transactional_id))[0].decode())
        except NoNodeError:
            return None

    def commit_as(self, transactional_id: str, state: str, events: dict[str, str]) -> None:
        node = self._state_node(transactional_id)
        self.direct.ensure_path(node)
        multi = self.direct.transaction()
        for key, value in events.items():
            multi.create(f"/{self._root}/events/{key}", value.encode())
        multi.set_data(node, state.encode())
        assert not any(isinstance(result, Exception) for result in multi.commit())

    def break_the_lease(self, transactional_id: str) -> None:
        """As the end of its owner's session does."""
        self.direct.delete(f"{self._state_node(transactional_id)}/lock")

    def cut(self) -> None:
        self.proxy.cut()

    def lose_answer(self) -> None:
        self.proxy.swallow_answer_to(lambda request: True)

    def lose_multi(self, *, applied: bool) -> None:
        if applied:
            self.proxy.swallow_answer_to(_is_multi)
        else:
            self.proxy.cut_at(_is_multi)

    def come_back(self) -> None:
        """No fault is armed any more, and the client has noticed past ones."""
        self.proxy.disarm()
        KazooRetry(max_tries=100, delay=0.02, max_delay=0.1)(self.client.exists, self.state_path)

    def let_go(self) -> None:
        """Any process may come at any time."""

    def take_back(self) -> None:
        """It was never away."""

    def close(self) -> None:
        for client in (self.client, self.direct):
            client.stop()
            client.close()
        self.proxy.close()

    def _state_node(self, transactional_id: str) -> str:
        return f"{self.state_path}/{node_name(transactional_id)}"


def _is_multi(request: bytes) -> bool:
    return request[8:12] == _MULTI


def opened(kind: str, address: str) -> KeyValueStore:
    """For a worker process."""
    return RocksDbStore(address) if kind == "rocksdb" else ZooKeeperStore(address)


def in_directory(directory: Path) -> RocksDbStore:
    """A new RocksDB."""
    return RocksDbStore(str(directory / unique("rocksdb")))
