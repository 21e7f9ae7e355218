"""The rules that configuration and behaviour profile set for the coordinator's decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import BrokerConfig, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRules:
    """The defaults are those of profile `kip-939`: all of the KIPs, and the newest Kafka where releases differ."""

    transaction_version: int = 2
    """The cluster's finalized `transaction.version`: decides the log's value version and how the server aborts."""
    newest_client_version: int = 2
    """The newest transaction version that is recorded for a client's request; brokers before 4.0 record none."""
    two_phase_commit_enabled: bool = True
    keep_prepared_supported: bool = True
    max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    rotates_on_server_abort: bool = True
    """Whether a server abort at the epoch limit completes under a fresh producer id (KAFKA-20090; seen in 4.3.1)."""
    late_commit_error: ErrorCode = ErrorCode.producer_fenced
    """The error for a commit that arrives after the server aborted (KAFKA-20785); INVALID_TXN_STATE before the fix."""
    pending_checked_before_identity: bool = True
    """Whether adding partitions checks for a pending transition before it checks the producer (KAFKA-18660)."""
    logs_last_epoch: bool = True
    """Whether `__transaction_state` holds the epoch before the last bump (KAFKA-20357) and the pair of a recovering
    client (KIP-939). Without it, a retry of EndTxn is recognised by its epoch being one behind, and a retry of
    InitProducerId is not recognised by the next coordinator."""
    unwritable_record_wedges: bool = False
    """Whether an id stays pending for ever (51) after a record that the log has no format for: that of a request of
    transaction version 2 on a cluster at level 0. Seen in 4.3.1; it ends when the coordinator moves."""
    exhausted_init_retry_fails: bool = False
    """Whether InitProducerId with the last epoch, at the epoch limit, surfaces Kafka's IllegalStateException as -1.

    KIP-360 asks for the idempotent response instead.
    """

    @classmethod
    def from_config(cls, config: BrokerConfig) -> Self:
        """Return the rules that one emulator's configuration sets."""
        imitates_kip = config.profile is Profile.KIP_939
        before_tv2 = config.profile is Profile.KAFKA_3_9
        transaction_version = 0 if before_tv2 else config.transaction_version
        return cls(
            transaction_version=transaction_version,
            newest_client_version=0 if before_tv2 else 2,
            two_phase_commit_enabled=config.transaction_two_phase_commit_enable,
            keep_prepared_supported=imitates_kip and transaction_version >= 2,
            max_timeout_ms=config.transaction_max_timeout_ms,
            transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            late_commit_error=ErrorCode.producer_fenced if imitates_kip else ErrorCode.invalid_txn_state,
            pending_checked_before_identity=not before_tv2,
            logs_last_epoch=imitates_kip,
            unwritable_record_wedges=not imitates_kip,
            exhausted_init_retry_fails=not imitates_kip,
        )
