"""The checks of a cluster for dual writes, computed from the brokers' descriptions without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualwrite.admin import BrokerFeatures, TopicDescription, TwoPhaseCommit
from dualwrite.cli.doctor_checks import Check, failure, warning
from dualwrite.decisions.obstacles import obstacle_of
from dualwrite.errors import Api, IncompleteAnswerError, KafkaError
from dualwrite.guarantee import Tier

_LEAST_INIT_VERSION: Final = 3
_NEWEST_TRANSACTION_VERSION: Final = 2
_FEATURE: Final = "transaction.version"
_UNKNOWN_TOPIC: Final = 3

_UNBOUNDED: Final = (Tier.KEEP_PREPARED, Tier.STORED_PAIR)

_TIERS: Final = {
    TwoPhaseCommit.KEEPS_PREPARED: Tier.KEEP_PREPARED,
    TwoPhaseCommit.STORED_PAIR: Tier.STORED_PAIR,
    TwoPhaseCommit.REFUSED: Tier.BOUNDED,
    TwoPhaseCommit.NOT_OFFERED: Tier.BOUNDED,
}

_TWO_PHASE_REMEDIES: Final = {
    TwoPhaseCommit.REFUSED: (
        "set transaction.two.phase.commit.enable=true on the brokers, and allow this client WRITE and TWO_PHASE_COMMIT "
        "on its transactional ids"
    ),
    TwoPhaseCommit.NOT_OFFERED: (
        "Apache Kafka 4.1 and newer support it with unstable.api.versions.enable=true and "
        "transaction.two.phase.commit.enable=true; without it, transactions have a timeout"
    ),
}


def tier_of(features: BrokerFeatures, two_phase_commit: TwoPhaseCommit) -> Tier | None:
    """Return the tier of one broker; None if it is too old for any."""
    init = features.api_versions.get(Api.INIT_PRODUCER_ID, (0, -1))[1]
    if init < _LEAST_INIT_VERSION or Api.DESCRIBE_TRANSACTIONS not in features.api_versions:
        return None
    return Tier.BOUNDED_V1 if features.transaction_version < _NEWEST_TRANSACTION_VERSION else _TIERS[two_phase_commit]


def cluster_checks(
    features: Mapping[int, BrokerFeatures], two_phase_commit: Mapping[int, TwoPhaseCommit]
) -> tuple[list[Check], Tier | None]:
    """Return the checks, and the tier of the weakest broker, because any may become a coordinator; None: too old.

    Raises IncompleteAnswerError if a broker was described in one respect only.
    """
    if partly := features.keys() ^ two_phase_commit.keys():
        why = KafkaError(f"broker {min(partly)} has joined or left the cluster while the brokers were described")
        raise IncompleteAnswerError(f"{why}: repeat the command", partial={}, failures=dict.fromkeys(partly, why))
    checks: list[Check] = []
    tiers: list[Tier | None] = []
    for broker_id in sorted(features):
        found, tier = _broker_checks(features[broker_id], two_phase_commit[broker_id])
        checks += found
        tiers.append(tier)
    if len(set(tiers)) > 1:
        remedy = "give all brokers the same version and settings; until then the weakest one counts"
        checks.append(warning("kafka", "brokers agree", "no: they have different tiers", remedy))
    known = [tier for tier in tiers if tier is not None]
    if len(known) < len(tiers):
        checks.append(
            failure("kafka", "tier", "none", "upgrade the brokers that are too old to Apache Kafka 3.0 or newer")
        )
        return checks, None
    return checks, max(known)


def _broker_checks(features: BrokerFeatures, two_phase_commit: TwoPhaseCommit) -> tuple[list[Check], Tier | None]:
    where = f"broker {features.broker_id}"
    tier = tier_of(features, two_phase_commit)
    newest = {
        api: features.api_versions.get(api, (0, -1))[1] for api in (Api.INIT_PRODUCER_ID, Api.END_TXN, Api.PRODUCE)
    }
    versions = ", ".join(f"{api.kafka_name} v{version}" for api, version in newest.items())
    if tier is None:
        return [failure(where, "versions", versions, "upgrade this broker to Apache Kafka 3.0 or newer")], None
    return [
        Check(where, "versions", versions),
        _version_check(where, features),
        _two_phase_check(where, two_phase_commit),
    ], tier


def _version_check(where: str, features: BrokerFeatures) -> Check:
    level = features.transaction_version
    if level >= _NEWEST_TRANSACTION_VERSION:
        return Check(where, _FEATURE, str(level))
    if features.supported_features.get(_FEATURE, (0, 0))[1] >= _NEWEST_TRANSACTION_VERSION:
        remedy = f"kafka-features.sh upgrade --feature {_FEATURE}={_NEWEST_TRANSACTION_VERSION}"
    else:
        remedy = "upgrade to Apache Kafka 4.0 or newer (KIP-890)"
    return warning(where, _FEATURE, str(level), remedy)


def _two_phase_check(where: str, found: TwoPhaseCommit) -> Check:
    remedy = _TWO_PHASE_REMEDIES.get(found)
    what = "two-phase commit"
    return Check(where, what, str(found)) if remedy is None else warning(where, what, str(found), remedy)


def tier_check(tier: Tier) -> Check:
    """Return the tier of a cluster; a bounded one is a warning."""
    found = f"{int(tier)} ({tier.name})"
    if tier is Tier.KEEP_PREPARED:
        remedy = "no released Apache Kafka has KIP-939 in full: test on the Kafka that you run, or with its profile"
        return warning("kafka", "tier", found, remedy)
    if tier in _UNBOUNDED:
        return Check("kafka", "tier", found)
    remedy = (
        "decided transactions that these brokers abort are published again later, from the log, which needs READ on "
        "the topics, and topics that are not compacted; check yours with --topic. Consumed offsets belong in the "
        "database here (OffsetsInDatabase). Set transaction.timeout.ms to the brokers' maximum, and run `dualwrite "
        "recover` at shorter intervals than that. Where the log does not suffice, and for a producer without a "
        "database, accept the bound with accept.bounded.guarantee=true"
    )
    return warning("kafka", "tier", found, remedy)


def topic_checks(name: str, topic: TopicDescription, tier: Tier | None, creates_topics: bool | None) -> list[Check]:
    """Return whether dual writes may send to a topic, and whether it can be repaired, by the rights of this client.

    `tier` is None if unknown. `creates_topics`: whether brokers create missing topics; None if unknown.
    """
    if topic.is_readable is None:
        return [_unseen_check(name, topic, creates_topics)]
    checks = [_repair_check(name, topic, tier)]
    if topic.is_writable is False:
        remedy = "grant WRITE on the topic to this client"
        checks.append(failure(f"topic {name}", "right to write", "no", remedy))
    return checks


def _unseen_check(name: str, topic: TopicDescription, creates_topics: bool | None) -> Check:
    """Return whether dual writes may send to a topic that does not exist, or that this client may not see."""
    where, what = f"topic {name}", "can be written"
    if not is_missing(topic) or creates_topics is False:
        remedy = (
            "create the topic, or grant this client WRITE and READ on it (docs/security.md): until then each block "
            "that sends to it fails"
        )
        return failure(where, what, f"no: {topic.why_not_known}", remedy)
    if creates_topics is None:
        remedy = (
            "create the topic: blocks that send to it fail, unless the cluster creates it (auto.create.topics.enable)"
        )
        return warning(where, what, f"not known: {topic.why_not_known}", remedy)
    remedy = "create the topic: the first block does so only if its client has CREATE, and with the brokers' defaults"
    return warning(where, what, "it does not exist, and brokers create it (auto.create.topics.enable)", remedy)


def is_missing(topic: TopicDescription) -> bool:
    """Return whether the brokers say that the topic does not exist."""
    return topic.why_not_known is not None and topic.why_not_known.error_code == _UNKNOWN_TOPIC


def _repair_check(name: str, topic: TopicDescription, tier: Tier | None) -> Check:
    """Return whether dual writes may send to a topic on a cluster of this tier, by the rights of this client."""
    where = f"topic {name}"
    what = "can be repaired"
    obstacle = obstacle_of(name, topic)
    if obstacle is not None and tier in _UNBOUNDED:
        return Check(where, what, f"no, and it need not be on tier {int(tier)}: {obstacle.why}")
    if obstacle is not None and tier is None:
        remedy = f"on tiers 3 and 4 dual writes to this topic are refused: {obstacle.remedy}"
        return warning(where, what, f"no: {obstacle.why}", remedy)
    if obstacle is not None:
        remedy = f"dual writes to this topic are refused: {obstacle.remedy}"
        return failure(where, what, f"no: {obstacle.why}", remedy)
    if topic.is_compacted is None:
        remedy = "grant DESCRIBE_CONFIGS on the topic, or see to it that its cleanup.policy is 'delete'"
        return warning(where, what, "yes, unless it is compacted, which this client may not query", remedy)
    late = (
        f"; a record that is published again later than {topic.most_age_ms} ms (message.timestamp.before.max.ms) gets "
        "a new timestamp, and keeps its own in a header"
    )
    has = f"yes: readable, cleanup.policy is {topic.cleanup_policy!r}"
    return Check(where, what, has if topic.most_age_ms is None else has + late)
