"""One cluster, and transactions in each state that a test creates there, with another library's codec."""

from __future__ import annotations

from typing import Self

from tests.interop.wire import Code, Identity, Wire, record_batch
from tests.support.names import next_name


class Site:
    """A cluster, and the newest client protocol that it supports."""

    def __init__(self, name: str, bootstrap_servers: str, *, has_tv2: bool) -> None:
        self.name = name
        self.bootstrap_servers = bootstrap_servers
        self.has_tv2 = has_tv2
        self.wire = Wire(bootstrap_servers)
        self.wire.wait_for_coordinator("any")

    @property
    def commit_after_abort(self) -> Code:
        """The error of a commit whose transaction was aborted: releases with version 2 lack KAFKA-20785."""
        is_release = self.has_tv2 and self.name != "kip-939"
        return Code.INVALID_TXN_STATE if is_release else Code.PRODUCER_FENCED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def new_topic(self, partitions: int = 1) -> str:
        name = next_name("topic")
        self.wire.create_topic(name, partitions)
        return name

    def new_id(self) -> str:
        return next_name("txn")

    def write(
        self, transactional_id: str, identity: Identity, topic: str, partition: int = 0, *, sequence: int = 0
    ) -> None:
        """Write one record in a transaction; an old client adds the partition at the coordinator first."""
        if not self.has_tv2:
            assert self.wire.add(transactional_id, identity, (topic, partition)) == [Code.NONE]
        self.write_unannounced(transactional_id, identity, topic, partition, sequence=sequence, old=not self.has_tv2)

    def write_unannounced(
        self,
        transactional_id: str,
        identity: Identity,
        topic: str,
        partition: int = 0,
        *,
        sequence: int = 0,
        timestamp_ms: int | None = None,
        old: bool = True,
    ) -> None:
        """Write one record in a transaction without adding the partition first; for a new client, the broker does."""
        batch = record_batch([b"v"], identity, sequence, transactional=True, timestamp_ms=timestamp_ms)
        version = 11 if old else 12
        written = self.wire.produce_bytes(transactional_id, topic, batch, partition=partition, version=version)
        assert written.error == Code.NONE

    def open(self, transactional_id: str, topic: str, *, timeout_ms: int = 60_000) -> Identity:
        """Open a transaction with one record on partition 0."""
        identity = self.wire.init_ok(transactional_id, timeout_ms=timeout_ms)
        self.write(transactional_id, identity, topic)
        return identity

    def end(self, transactional_id: str, identity: Identity, *, commit: bool) -> None:
        version = 5 if self.has_tv2 else 4
        assert self.wire.end_settled(transactional_id, identity, commit=commit, version=version).error == Code.NONE

    def ids_by_state(self, topic: str) -> dict[str, str]:
        """Create a transactional id in each of the lasting states."""
        ids = {state: self.new_id() for state in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")}
        self.wire.init_ok(ids["Empty"])
        self.open(ids["Ongoing"], topic)
        for state, commit in (("CompleteCommit", True), ("CompleteAbort", False)):
            self.end(ids[state], self.open(ids[state], topic), commit=commit)
        return ids
