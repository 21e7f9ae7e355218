"""The settings that constructors take as keywords, as types: editors complete them, and a typo is a type error.

`config.py` makes the same checks at run time, and tests compare the two. The types are narrower where a program should
write one form only: a number is an int here, although a text of digits is accepted at run time as well.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict

from dualwrite.delivery import Delivery, Direct
from dualwrite.partitioners import Partitioner
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.serializers import Serializer

__all__ = [
    "AdminSettings",
    "ConnectionSettings",
    "ProducerSettings",
    "RecoverySettings",
    "WriterPoolSettings",
    "WriterSettings",
]

Servers = str | Sequence[str]
"""`"host:port,host:port"`, or each server by itself."""


class ConnectionSettings(TypedDict, total=False):
    """The settings of every connection to Kafka, besides `bootstrap_servers`."""

    client_id: str
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    security_protocol: str
    sasl_mechanism: str
    sasl_username: str | None
    sasl_password: str | None
    sasl_oauth_token_provider: Callable[[], str] | None
    sasl_oauth_extensions: Mapping[str, str]
    ssl_ca_location: str | os.PathLike[str] | None
    ssl_certificate_location: str | os.PathLike[str] | None
    ssl_key_location: str | os.PathLike[str] | None
    ssl_key_password: str | None
    ssl_endpoint_identification_algorithm: Literal["https", "none", ""] | None
    ssl_context: ssl.SSLContext | None
    request_timeout_ms: int


class _Publishing(TypedDict, total=False):
    """The settings of everything that sends records, its own or previously decided ones."""

    transaction_timeout_ms: int
    max_in_flight_requests_per_connection: int
    unreachable_timeout_ms: int | None
    delivery_timeout_ms: int
    linger_ms: int
    batch_size: int
    max_request_size: int
    buffer_memory: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int | None
    partitioner: Literal["default", "murmur2_random", "consistent_random", "random", "round_robin"] | Partitioner
    metadata_max_age_ms: int
    connections_max_per_node: int


class _Sending(_Publishing, total=False):
    """The settings of everything that sends its own records."""

    enable_idempotence: bool
    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    max_block_ms: int
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    trace_records: bool


class ProducerSettings(ConnectionSettings, _Sending, total=False):
    """The settings of `Producer` and `AsyncProducer`; `bootstrap_servers` may be in the mapping instead."""

    bootstrap_servers: Servers
    transactional_id: str | None
    transaction_two_phase_commit_enable: bool
    accept_bounded_guarantee: bool


class _Writing(_Sending, total=False):
    """The settings of every writer: those of its producer, and those of its blocks.

    `lock_timeout_ms`: how long the state row may stay locked by another process (None: the database's own limit);
    60,000. `resolve_timeout_ms`: how long a database that does not respond after COMMIT is queried again; 30,000.
    `max_buffered_bytes`: how much memory the records of one block may take.
    `create_table`: whether missing tables are created (yes). `schema`: that of the tables.
    """

    lock_timeout_ms: int | None
    resolve_timeout_ms: int
    max_buffered_bytes: int
    pause: PauseHook | None
    create_table: bool
    schema: str | None


class _OneId(ConnectionSettings, _Writing, total=False):
    delivery: Direct


class WriterSettings(_OneId):
    """The settings of a writer with one transactional id, besides that and its database."""

    bootstrap_servers: Servers


class _Leased(ConnectionSettings, _Writing, total=False):
    """More settings of pools.

    `max_writers`: how many transactional ids one process uses at a time; 8. `acquire_timeout_ms`: how long a block
    waits for one; 30,000. `lease_ms`: how long after its last renewal a process's lease of its ids ends; 15,000.
    """

    delivery: Delivery
    max_writers: int
    acquire_timeout_ms: int
    lease_ms: int


class WriterPoolSettings(_Leased):
    """The settings of a writer with a prefix, besides that and its database."""

    bootstrap_servers: Servers


class AdminSettings(ConnectionSettings, total=False):
    """The settings of `TransactionAdmin` and `AsyncTransactionAdmin`; `bootstrap_servers` may be in the mapping."""

    bootstrap_servers: Servers
    default_api_timeout_ms: int


class RecoverySettings(ConnectionSettings, _Publishing):
    """The settings of `RecoveryService`, which has its own `timeout_ms`, and publishes owed and stored records."""

    bootstrap_servers: Servers
