"""The persisted state of share-partitions, as group coordinators and leaders of partitions use it."""

from __future__ import annotations

from typing import Protocol

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.share.state import ShareState, ShareStateUpdate, StateKey, Summary

_MESSAGES: dict[ErrorCode, str] = {
    ErrorCode.unknown_topic_or_partition: "This server does not host this topic-partition.",
    ErrorCode.fenced_state_epoch: "The coordinator rejected the request because the state epoch did not match.",
    ErrorCode.fenced_leader_epoch: "The leader epoch in the request is older than the epoch on the broker.",
}


class StateError(Exception):
    """A request about the state of a share-partition is refused with this error; nothing has changed."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        self.message = message or _MESSAGES.get(error)
        super().__init__(self.message or error.name)
        self.error = error


class StatesOfPartition(Protocol):
    """The states in one partition of `__share_group_state`. Every method may raise StateError."""

    def read(self, key: StateKey, leader_epoch: int) -> ShareState:
        """Return the state for the leader of a partition, and fence older leaders."""

    def write(self, key: StateKey, state_epoch: int, update: ShareStateUpdate) -> None:
        """Append an update."""

    def summary(self, key: StateKey) -> Summary:
        """Return the summary of a state, or `NO_SUMMARY`."""

    async def replicated(self) -> None:
        """Wait until everything appended so far is replicated."""


class States(Protocol):
    """The states of all share-partitions of the cluster. Every method may raise StateError."""

    def shard(self, key: StateKey) -> StatesOfPartition:
        """Return the states of the partition that holds the state of this share-partition."""

    async def initialize(self, key: StateKey, state_epoch: int, start_offset: int) -> None:
        """Give a share-partition a new state, and make its leader forget the old one."""

    async def delete(self, key: StateKey) -> None:
        """Delete the state of a share-partition, and make its leader forget it."""
