"""The tier of a broker: every combination of its features, the settings and the accepted guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest

from dualwrite.client import messages as m
from dualwrite.client.transactions.tiers import First, Plan, plan, plan_after_keep, tier_between_transactions
from dualwrite.errors import Api, UnsupportedByBrokerError
from dualwrite.guarantee import Guarantee, Tier, guarantee_of

KIP_939: dict[int, tuple[int, int]] = {
    Api.INIT_PRODUCER_ID: (0, 6),
    Api.ADD_PARTITIONS_TO_TXN: (0, 5),
    Api.ADD_OFFSETS_TO_TXN: (0, 4),
    Api.END_TXN: (0, 5),
    Api.TXN_OFFSET_COMMIT: (0, 5),
    Api.DESCRIBE_TRANSACTIONS: (0, 0),
}
KAFKA_4 = KIP_939 | {Api.INIT_PRODUCER_ID: (0, 5)}
KAFKA_3_9 = KAFKA_4 | {Api.END_TXN: (0, 4), Api.TXN_OFFSET_COMMIT: (0, 4)}
KAFKA_2_5 = {api: (least, min(most, 3)) for api, (least, most) in KAFKA_3_9.items()}
del KAFKA_2_5[Api.DESCRIBE_TRANSACTIONS]


def planned(
    versions: Mapping[int, tuple[int, int]], level: int, *, two_phase: bool, keep: bool, accepted: bool
) -> Plan | UnsupportedByBrokerError:
    features = m.BrokerFeatures(0, versions, level)
    return plan(features, two_phase_commit=two_phase, keep=keep, accepted=accepted, timeout_ms=900_000)


@pytest.mark.parametrize(("two_phase", "keep", "accepted"), list(product([True, False], repeat=3)))
@pytest.mark.parametrize(("versions", "level"), [(KAFKA_3_9, 0), *product([KIP_939, KAFKA_4], [0, 1, 2])])
def test_every_broker_and_wish(
    versions: Mapping[int, tuple[int, int]], level: int, two_phase: bool, keep: bool, accepted: bool
) -> None:
    found = planned(versions, level, two_phase=two_phase, keep=keep, accepted=accepted)
    if versions is KIP_939 and level == 2 and (two_phase or keep):
        assert found == Plan(None, First.TRY_KEEP)
        return
    first = First.DESCRIBE if keep else First.TAKE_OVER
    if not two_phase:
        assert found == Plan(None, first)
    elif accepted:
        assert found == Plan(Tier.BOUNDED if level == 2 else Tier.BOUNDED_V1, first)
    else:
        assert isinstance(found, UnsupportedByBrokerError)
        for words in (f"tier {3 if level == 2 else 4}", "transaction.timeout.ms=900000", "accept.bounded.guarantee"):
            assert words in str(found)


@pytest.mark.parametrize(("two_phase", "keep", "accepted"), list(product([True, False], repeat=3)))
@pytest.mark.parametrize("code", [35, 53, 31, 42, 50, 51, 90])
def test_every_refusal_of_keep(code: int, two_phase: bool, keep: bool, accepted: bool) -> None:
    features = m.BrokerFeatures(0, KIP_939, 2)
    found = plan_after_keep(
        code, features, two_phase_commit=two_phase, keep=keep, accepted=accepted, timeout_ms=900_000
    )
    first = First.DESCRIBE if keep else First.TAKE_OVER
    if code == 35:
        assert found == Plan(Tier.STORED_PAIR if two_phase else None, first)
    elif code == 53 and two_phase and accepted:
        assert found == Plan(Tier.BOUNDED, first)
    else:
        assert found is None


def test_an_old_broker_is_enough_for_plain_transactions_and_not_for_recovery() -> None:
    """Kafka 2.5 added InitProducerId with the expected pair (KIP-360), 3.0 DescribeTransactions (KIP-664)."""
    assert planned(KAFKA_2_5, 0, two_phase=False, keep=False, accepted=False) == Plan(None, First.TAKE_OVER)
    found = planned(KAFKA_2_5, 0, two_phase=True, keep=False, accepted=True)
    assert isinstance(found, UnsupportedByBrokerError)
    assert "DescribeTransactions" in str(found)
    assert "3.0 or newer" in str(found)


@pytest.mark.parametrize("api", [api for api in KAFKA_3_9 if api is not Api.DESCRIBE_TRANSACTIONS])
def test_the_missing_feature_is_named(api: Api) -> None:
    too_old = KAFKA_2_5 | {api: (0, 2)} if api is Api.INIT_PRODUCER_ID else {**KAFKA_2_5, api: (9, 9)}
    found = planned(too_old, 0, two_phase=False, keep=False, accepted=False)
    assert isinstance(found, UnsupportedByBrokerError)
    assert api.kafka_name in str(found)
    assert "2.5 or newer" in str(found)


@pytest.mark.parametrize(
    ("tier", "level", "expected"),
    [
        (None, 1, None),
        (None, 2, None),
        *[(tier, level, Tier.BOUNDED_V1) for tier in Tier for level in (0, 1)],
        (Tier.KEEP_PREPARED, 2, Tier.KEEP_PREPARED),
        (Tier.STORED_PAIR, 2, Tier.STORED_PAIR),
        (Tier.BOUNDED, 2, Tier.BOUNDED),
        (Tier.BOUNDED_V1, 2, Tier.BOUNDED),
    ],
)
def test_another_level_between_transactions(tier: Tier | None, level: int, expected: Tier | None) -> None:
    assert tier_between_transactions(tier, level) is expected


def test_every_tier_has_its_sentence_and_its_bound() -> None:
    assert [int(tier) for tier in Tier] == [1, 2, 3, 4]
    for tier in (None, *Tier):
        guarantee = guarantee_of(tier, 4711)
        bounded = tier not in (Tier.KEEP_PREPARED, Tier.STORED_PAIR)
        assert guarantee == Guarantee(tier, guarantee.sentence, 4711 if bounded else None)
        assert ("4711 ms" in guarantee.sentence) is bounded
