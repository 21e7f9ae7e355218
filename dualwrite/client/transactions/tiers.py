"""The tier of a broker, by its features and its first responses. Decisions without I/O.

| tier | transaction.version | InitProducerId v6, two-phase commit on | KeepPreparedTxn |
|---|---|---|---|
| 1 | 2 | yes | supported |
| 2 | 2 | yes | refused with 35 |
| 3 | 2 | not offered, or refused with 53 | |
| 4 | 0, 1 | | |
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from dualwrite.client import messages as m
from dualwrite.client.wire.versions import (
    EXPECTED_PAIR_INIT_VERSION,
    NEWEST_TRANSACTION_VERSION,
    SPOKEN_VERSIONS,
    TWO_PHASE_INIT_VERSION,
    common_version,
    versions_in_transaction,
)
from dualwrite.errors import Api, UnsupportedByBrokerError
from dualwrite.guarantee import Tier

UNSUPPORTED_VERSION: Final = 35
AUTHORIZATION_FAILED: Final = 53

ACCEPT_SETTING: Final = "accept.bounded.guarantee"


class First(Enum):
    """The first step of `init_transactions()` after ApiVersions."""

    TRY_KEEP = "InitProducerId v6 with KeepPreparedTxn, whose response shows whether it is supported"
    DESCRIBE = "DescribeTransactions, and no InitProducerId yet"
    TAKE_OVER = "InitProducerId, which aborts an open transaction"


class Plan(NamedTuple):
    """The tier and the first step. `tier` None: not known yet, or two-phase commit is not requested."""

    tier: Tier | None
    first: First


def plan(
    features: m.BrokerFeatures, *, two_phase_commit: bool, keep: bool, accepted: bool, timeout_ms: int
) -> Plan | UnsupportedByBrokerError:
    """Return the first step on a coordinator with `features`. `accepted`: the caller accepts a bounded guarantee."""
    missing = _missing(features, describes=keep or two_phase_commit)
    if missing is not None:
        return missing
    if (two_phase_commit or keep) and _may_keep(features):
        return Plan(None, First.TRY_KEEP)
    if not two_phase_commit:
        return Plan(None, First.DESCRIBE if keep else First.TAKE_OVER)
    return _bounded(features, keep=keep, accepted=accepted, timeout_ms=timeout_ms)


def plan_after_keep(
    error_code: int, features: m.BrokerFeatures, *, two_phase_commit: bool, keep: bool, accepted: bool, timeout_ms: int
) -> Plan | UnsupportedByBrokerError | None:
    """Return the step after KeepPreparedTxn was refused, which changed nothing. None: the refusal is final."""
    if error_code == UNSUPPORTED_VERSION:
        return Plan(Tier.STORED_PAIR if two_phase_commit else None, First.DESCRIBE if keep else First.TAKE_OVER)
    if error_code == AUTHORIZATION_FAILED and two_phase_commit and accepted:
        return _bounded(features, keep=keep, accepted=accepted, timeout_ms=timeout_ms)
    return None


def tier_between_transactions(tier: Tier | None, transaction_version: int) -> Tier | None:
    """Return the tier of a producer initialised at `tier` after the cluster changed its transaction.version."""
    if tier is None:
        return None
    if transaction_version < NEWEST_TRANSACTION_VERSION:
        return Tier.BOUNDED_V1
    return Tier.BOUNDED if tier is Tier.BOUNDED_V1 else tier


def not_accepted(tier: Tier, reason: str, timeout_ms: int) -> UnsupportedByBrokerError:
    """Return the error for a bounded guarantee that the caller did not accept."""
    return UnsupportedByBrokerError(
        f"{reason}, so this cluster is tier {int(tier)}: a prepared transaction would survive only until the broker "
        f"aborts it after transaction.timeout.ms={timeout_ms}. Nothing was changed; set {ACCEPT_SETTING}=true to "
        "accept that bound, or use a broker with two-phase commit (KIP-939)"
    )


def why_bounded(features: m.BrokerFeatures) -> str:
    """Return why this broker has no two-phase commit without a timeout."""
    if features.transaction_version < NEWEST_TRANSACTION_VERSION:
        return (
            f"the cluster runs transaction.version={features.transaction_version}, which has no epoch per transaction "
            "(KIP-890; that needs Apache Kafka 4.0 or newer with the feature finalised)"
        )
    if not _may_keep(features):
        return (
            "the broker does not offer InitProducerId v6, and so no two-phase commit (KIP-939; Apache Kafka 4.1 and "
            "newer offer it only with unstable.api.versions.enable=true)"
        )
    return "the broker refused two-phase commit"


def _bounded(
    features: m.BrokerFeatures, *, keep: bool, accepted: bool, timeout_ms: int
) -> Plan | UnsupportedByBrokerError:
    old = features.transaction_version < NEWEST_TRANSACTION_VERSION
    tier = Tier.BOUNDED_V1 if old else Tier.BOUNDED
    if not accepted:
        return not_accepted(tier, why_bounded(features), timeout_ms)
    return Plan(tier, First.DESCRIBE if keep else First.TAKE_OVER)


def _may_keep(features: m.BrokerFeatures) -> bool:
    two_phase = (TWO_PHASE_INIT_VERSION, TWO_PHASE_INIT_VERSION)
    offered = features.versions.get(Api.INIT_PRODUCER_ID)
    newest = features.transaction_version >= NEWEST_TRANSACTION_VERSION
    return newest and common_version(two_phase, offered) is not None


def _missing(features: m.BrokerFeatures, *, describes: bool) -> UnsupportedByBrokerError | None:
    version = features.transaction_version
    init = (EXPECTED_PAIR_INIT_VERSION, TWO_PHASE_INIT_VERSION)
    wanted = {
        Api.INIT_PRODUCER_ID: init,
        Api.END_TXN: versions_in_transaction(Api.END_TXN, version),
        Api.TXN_OFFSET_COMMIT: versions_in_transaction(Api.TXN_OFFSET_COMMIT, version),
    }
    if version < NEWEST_TRANSACTION_VERSION:
        wanted |= {api: SPOKEN_VERSIONS[api] for api in (Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN)}
    if describes:
        wanted[Api.DESCRIBE_TRANSACTIONS] = SPOKEN_VERSIONS[Api.DESCRIBE_TRANSACTIONS]
    for api, versions in wanted.items():
        if common_version(versions, features.versions.get(api)) is None:
            needed = "3.0 or newer for two-phase commit" if api is Api.DESCRIBE_TRANSACTIONS else "2.5 or newer"
            return UnsupportedByBrokerError(
                f"the broker does not offer {api.kafka_name} v{versions[0]}; this needs Apache Kafka {needed}"
            )
    return None
