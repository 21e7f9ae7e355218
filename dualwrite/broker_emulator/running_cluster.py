"""The cluster of a running emulator, in its event loop: start it, serve clients, restart nodes, and stop it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.clock import Clock
from dualwrite.broker_emulator.cluster.cluster import Cluster, ClusterNode
from dualwrite.broker_emulator.cluster.node import Node
from dualwrite.broker_emulator.cluster.operations import Operations
from dualwrite.broker_emulator.cluster.periodic_work import ConfiguredTimers, LogMaintenance
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.faults.registry import Faults
from dualwrite.broker_emulator.net.listeners import Listeners
from dualwrite.broker_emulator.net.markers import send_marker_with_faults
from dualwrite.broker_emulator.security.acl import Acl
from dualwrite.broker_emulator.storage.storage import MemoryOnly, Storage

if TYPE_CHECKING:
    from dualwrite.broker_emulator.control.server import ControlServer
    from dualwrite.broker_emulator.schema_registry.server import SchemaRegistryServer


class RunningCluster:
    """One run of an emulator's cluster."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, faults: Faults, listeners: Listeners, data_dir: Path | None
    ) -> None:
        """Open the storage. Raises StorageError."""
        self._storage = _open_storage(data_dir, config)
        self._is_recovered = False
        self._listeners = listeners
        self._timers: ConfiguredTimers | None = None
        self.control: ControlServer | None = None
        self._registry: SchemaRegistryServer | None = None
        self.cluster = Cluster(config, clock, faults, self._storage)
        self.operations = Operations(self.cluster)

    async def start(
        self, nodes: int, topics: Mapping[str, int], acls: Iterable[Acl], scram_users: Mapping[str, str]
    ) -> None:
        """Start all nodes, restore the stored topics, create the given contents, and then accept connections."""
        cluster = self.cluster
        for node_id in range(cluster.given_config.node_id, cluster.given_config.node_id + nodes):
            self._listeners.reserve(node_id)
            await self._add_node(node_id)
        cluster.restore_topics()
        self._is_recovered = True
        self.operations.add_acls(acls)
        for name, password in scram_users.items():
            cluster.scram_users.set_password(name, password)
        cluster.create_internal_topics()
        for name in [name for name in topics if name not in cluster.topics]:
            cluster.create_topic(name, topics[name])
        for partition in cluster.partitions():
            cluster.nodes[partition.leader_id].lead(partition)
        self._begin_maintenance()
        for node in cluster.nodes.values():
            await self._serve(node)  # last: clients must not see an incomplete cluster

    async def open_control(self, host: str, port: int) -> str:
        """Serve control over HTTP; return its URL. Raises OSError if the address is in use."""
        # imported only if enabled: it may be missing, and takes time to load
        from dualwrite.broker_emulator.control.endpoint import ControlledEmulator
        from dualwrite.broker_emulator.control.server import ControlServer

        controlled = ControlledEmulator(self.cluster, self.operations, self._listeners.bootstrap(None), self.start_node)
        self.control = ControlServer(controlled, self._own_names(host))
        await self.control.start(host.strip("[]"), port)
        return f"http://{host}:{self.control.port}"

    async def open_registry(self, host: str, port: int) -> str:
        """Serve a schema registry; return its URL. Raises OSError if the address is in use."""
        from dualwrite.broker_emulator.schema_registry.server import SchemaRegistryServer
        from dualwrite.broker_emulator.schema_registry.service import RegistryService

        service = RegistryService(self.cluster)
        await service.start()
        self._registry = SchemaRegistryServer(service, self._own_names(host))
        await self._registry.start(host.strip("[]"), port)
        return f"http://{host}:{self._registry.port}"

    def _own_names(self, host: str) -> set[str]:
        """Return the names known to lead to a port on `host`."""
        advertised = ",".join(map(self._listeners.bootstrap, self._listeners.names)).split(",")
        return {host, socket.gethostname(), *(address.rpartition(":")[0] for address in advertised)}

    def _begin_maintenance(self) -> None:
        """Start the periodic work of the whole cluster."""
        logs = LogMaintenance(self.cluster.clock, lambda: (partition.log for partition in self.cluster.partitions()))
        timers = self._timers = ConfiguredTimers(self.cluster)
        timers.every("producer_id_expiration_check_interval_ms", logs.expire_producers)
        timers.every("log_retention_check_interval_ms", logs.delete_old_segments)
        timers.every("log_cleaner_backoff_ms", logs.compact)
        if not isinstance(self._storage, MemoryOnly):
            timers.every("log_flush_interval_ms", self._storage.begin_flush)

    async def _add_node(self, node_id: int) -> Node:
        node = Node(node_id, self.cluster, self._listeners.endpoints(node_id), send_marker_with_faults)
        node.servers = await self._listeners.listen(node)
        self.cluster.nodes[node_id] = node
        return node

    async def _serve(self, node: ClusterNode) -> None:
        """Accept connections, and start the periodic work of the node."""
        config, every, transactions = self.cluster.given_config, self.cluster.clock.call_every, node.transactions
        node.timers += (
            every(
                config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
                transactions.abort_timed_out,
            ),
            every(
                config.transaction_remove_expired_transaction_cleanup_interval_ms,
                transactions.expire_transactional_ids,
            ),
            every(config.offsets_retention_check_interval_ms, node.groups.expire),
        )
        for server in node.servers:
            await server.start_serving()

    async def start_node(self, node_id: int) -> None:
        """Restart a node on its old port. Raises ValueError if it is running."""
        if self.operations.node(node_id).is_alive:
            raise ValueError(f"node {node_id} is already running")
        node = await self._add_node(node_id)
        changes = self.cluster.changes
        async with changes:
            await changes.make(self.cluster.elections.adoption(node))
        await self._serve(node)

    async def stop(self) -> None:
        """Stop serving and close all connections and the storage. Raises StorageError if the last writes fail."""
        if self.control is not None:
            self.control.close()
        if self._registry is not None:
            self._registry.close()
        if self._timers is not None:
            self._timers.cancel()
        for node in self.cluster.nodes.values():
            node.end()
            await node.transactions.shutdown()
        self._listeners.release()
        await _cancel_other_tasks()
        await self._close_logs()

    async def _close_logs(self) -> None:
        is_complete = False
        try:
            for partition in self.cluster.partitions():
                partition.log.close()
            is_complete = self._is_recovered
        finally:
            await self._storage.close(is_complete=is_complete)


def _open_storage(data_dir: Path | None, config: BrokerConfig) -> Storage:
    if data_dir is None:
        return MemoryOnly(config.memory_limit_bytes)
    # slow to import, and available on POSIX systems only
    from dualwrite.broker_emulator.storage.data_directory import DataDirectory

    return DataDirectory.open(data_dir, fsync=config.fsync, loop=asyncio.get_running_loop())


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
