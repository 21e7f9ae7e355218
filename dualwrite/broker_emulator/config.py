"""Broker settings by Kafka's names.

`BrokerConfig` holds Kafka's own setting names with `.` turned into `_`; units are in Kafka's names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from dualwrite.broker_emulator.configs.reading import field_values, given_text, problem_of_name, without_effect
from dualwrite.broker_emulator.profiles import Behaviours, Profile, behaviours_of

logger = logging.getLogger(__name__)

MAX_EPOCH = 32767
"""Short.MAX_VALUE: appears on markers and in Prepare records only, except for KIP-939's recovering client."""

TWO_PHASE_COMMIT_TIMEOUT_MS = 2147483647
"""The stored timeout that marks a two-phase-commit transaction (KAFKA-18953)."""


class Fsync(StrEnum):
    """When acknowledged records are on disk (`log/flusher.py` has the guarantee of each value)."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of all brokers of one emulator. Defaults are Kafka's unless a comment says otherwise."""

    profile: Profile = Profile.KIP_939
    node_id: int = 0
    """The id of the first node; the others follow."""
    transaction_version: int = 2
    """Finalized level of the feature `transaction.version`."""
    group_version: int = 1
    """Finalized level of the feature `group.version`: 1 for consumer groups (KIP-848), not in kafka-3.9."""
    share_version: int = 1
    """Finalized level of the feature `share.version`: 1 for share groups (KIP-932), not in kafka-3.9."""
    unstable_api_versions_enable: bool = False
    """Whether the profile of a released Kafka also serves its unstable versions (InitProducerId v6)."""
    num_partitions: int = 1
    default_replication_factor: int = 0  # Kafka: 1; 0: replicas on all nodes
    delete_topic_enable: bool = True
    fetch_max_bytes: int = 57671680
    auto_create_topics_enable: bool = True
    message_max_bytes: int = 1048588
    max_decompressed_message_bytes: int = 2147483639
    socket_request_max_bytes: int = 104857600
    max_connections: int = 2147483647
    max_connections_per_ip: int = 2147483647
    connections_max_idle_ms: int = 600_000
    quota_window_num: int = 11
    quota_window_size_seconds: int = 1
    controller_quota_window_num: int = 11
    controller_quota_window_size_seconds: int = 1
    connection_failed_authentication_delay_ms: int = 100
    sasl_server_max_receive_size: int = 524288
    max_request_elements: int = 100_000
    """Not a setting of Kafka: the maximum number of elements (topics, partitions, ...) of all arrays of a request."""
    transaction_two_phase_commit_enable: bool = True  # Kafka: false; here it is the broker's purpose
    transaction_max_timeout_ms: int = 900_000
    transaction_state_log_num_partitions: int = 50
    offsets_topic_num_partitions: int = 50
    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0  # Kafka: 3000, but 0 in the server.properties that it ships
    group_max_size: int = 2147483647
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2147483647
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors that members may request, the default first."""
    group_consumer_assignment_interval_ms: int = 0  # Kafka: 1000 since 4.4, to batch, which is not needed here
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_regex_refresh_interval_ms: int = 600_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transactional_id_expiration_ms: int = 604_800_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    transaction_partition_verification_enable: bool = True
    add_partitions_to_txn_retry_backoff_ms: int = 20
    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    authorizer_class_name: str = ""
    """The full name of Kafka's StandardAuthorizer; if empty, access control is off and every request is allowed."""
    super_users: str = ""
    """Principals that may do everything, as in `User:alice;User:bob`."""
    allow_everyone_if_no_acl_found: bool = False
    memory_limit_bytes: int = 1 << 30
    """Not a setting of Kafka: the maximum size of all records in memory; beyond it, appends are refused."""
    fsync: Fsync = Fsync.INTERVAL
    """Not a setting of Kafka: the guarantee of an acknowledgement with a data directory."""
    log_flush_interval_ms: int = 1_000  # Kafka: never, because of its replicas; used with fsync=interval
    log_segment_bytes: int = 64 << 20  # Kafka: 1 GiB; only full segments are deleted or compacted
    log_cleanup_policy: str = "delete"
    log_retention_ms: int = 604_800_000
    log_retention_bytes: int = -1
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_delete_retention_ms: int = 86_400_000
    log_cleaner_min_cleanable_ratio: float = 0.5
    log_cleaner_min_compaction_lag_ms: int = 0
    log_cleaner_max_compaction_lag_ms: int = 9223372036854775807
    log_roll_ms: int = 604_800_000
    """The age of a segment's first record at which a new segment is started."""
    log_message_timestamp_type: str = "CreateTime"
    log_message_timestamp_before_max_ms: int = 9223372036854775807
    log_message_timestamp_after_max_ms: int = 9223372036854775807  # Kafka: an hour; clients have no virtual clock
    min_insync_replicas: int = 1
    transaction_state_log_segment_bytes: int = 256 << 10  # Kafka: 100 MiB; a new leader reads all of it
    offsets_topic_segment_bytes: int = 256 << 10  # Kafka: 100 MiB; as above
    transaction_state_log_min_isr: int = 1  # Kafka: 2; there are as many replicas as nodes, and two may become one

    properties: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """All settings given to `from_properties`, by Kafka's name, as text, including those without effect here."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Self:
        """Build the settings from Kafka's dotted names, as in `server.properties`; values may be text or Python values.

        Settings of Kafka without effect here are accepted, and listed in one log line. An unknown setting causes a
        warning, as in Kafka. Raises ValueError for an invalid value.
        """
        given = {name: given_text(value) for name, value in properties.items()}
        ignored = {name: problem for name in given if (problem := problem_of_name(name, cls.names())) is not None}
        for problem in ignored.values():
            logger.warning("ignored: %s", problem)
        if "broker" not in given.get("process.roles", "broker"):
            raise ValueError("process.roles must include broker: every node here is one, and none is only a controller")
        config = cls().altered(given)
        unused = without_effect(given.keys() - ignored.keys(), cls.names())
        if unused:
            logger.warning("accepted, but without effect here: %s", ", ".join(unused))
        return replace(config, properties=given)

    @property
    def behaviours(self) -> Behaviours:
        """The behaviours of the profile."""
        return behaviours_of(self.profile)

    def altered(self, texts: Mapping[str, str]) -> Self:
        """Return a copy with other values, by Kafka's names; names without a field are ignored. Raises ValueError."""
        if not texts:
            return self
        values = {name: getattr(self, name) for name in self.names()}
        changed = field_values(texts, values)
        return replace(self, **changed) if changed else self

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the settings with a field, with `_` for `.`."""
        return [member.name for member in fields(cls) if member.name != "properties"]


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a Java properties file such as Kafka's `config/server.properties`: continuation lines, escapes, `=`, `:`.

    Raises ValueError with a sentence if the file cannot be read or is malformed, or if the package javaproperties is
    missing.
    """
    try:
        import javaproperties  # needed only for such a file
    except ModuleNotFoundError:
        raise ValueError(
            f"{path} cannot be read without the package javaproperties: pip install 'dualwrite[emulator]'"
        ) from None
    try:
        with Path(path).open("rb") as file:
            found: dict[str, str] = javaproperties.load(file)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a properties file: {error}") from error
    return {name: text.strip() for name, text in found.items()}
