"""Every transactional request late, lost, doubled and overtaken, on every profile: each effect is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.errors import AbortableError, FencedError
from tests.interop.wire import GROUP, Wire
from tests.support.kafka_proxy import Fate, KafkaProxy
from tests.support.late_matrix import KEEPS, V1, V2, cells, told
from tests.support.late_requests import TWO_PHASE, Cell, Play
from tests.support.names import next_name
from tests.support.own_producer import OwnProducer

KINDS = {Profile.KAFKA_3_9: V1, Profile.KAFKA_4_3: V2, Profile.KIP_939: KEEPS}
END_TXN, TXN_OFFSET_COMMIT, ADD_PARTITIONS = 26, 28, 24


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    with Emulator(config=BrokerConfig(profile=request.param)) as running:
        yield running


@pytest.mark.parametrize(
    ("emulator", "cell"),
    [pytest.param(profile, cell, id=f"{profile.value}-{cell}") for profile in KINDS for cell in cells(KINDS[profile])],
    indirect=["emulator"],
)
def test_every_effect_is_reported(emulator: Emulator, cell: Cell) -> None:
    make = OwnProducer.with_two_phase_commit if cell.end in TWO_PHASE else OwnProducer
    outcome = Play(emulator.bootstrap_servers, make, cell).run()
    assert outcome.is_caught
    assert outcome.anomalies == []
    assert outcome.told == told(KINDS[emulator.config.profile], cell)


class Site:
    """One topic, group and transactional id behind a relay."""

    def __init__(self, emulator: Emulator, proxy: KafkaProxy, wire: Wire) -> None:
        self.emulator, self.proxy, self.wire = emulator, proxy, wire
        self.topic, self.group, self.transactional_id = (next_name(f"late-{kind}") for kind in ("t", "g", "x"))
        wire.create_topic(self.topic)
        wire.wait_for_coordinator(self.group, GROUP)

    def producer(self) -> OwnProducer:
        made = OwnProducer(self.proxy.bootstrap_servers, self.transactional_id)
        made.init()
        return made

    def write(self, producer: OwnProducer, value: bytes) -> None:
        producer.begin()
        producer.send(self.topic, value)
        producer.flush()

    def offset(self) -> int:
        self.wire.wait_until_settled(self.transactional_id)
        return self.wire.offset_fetch(self.group, self.topic)[1]


@pytest.fixture
def site(emulator: Emulator) -> Iterator[Site]:
    with KafkaProxy(emulator.bootstrap_servers) as proxy, Wire(emulator.bootstrap_servers) as wire:
        yield Site(emulator, proxy, wire)


on_every_profile = pytest.mark.parametrize("emulator", KINDS, indirect=True, ids=lambda profile: profile.value)
on_version_1 = pytest.mark.parametrize("emulator", [Profile.KAFKA_3_9], indirect=True, ids=["kafka-3.9"])


@on_every_profile
def test_offsets_do_not_go_back_within_a_transaction(site: Site) -> None:
    """Both positions have the same epoch, so in a transaction with two the earlier may be stored last."""
    with closing(site.producer()) as producer:
        late = site.proxy.catch(TXN_OFFSET_COMMIT, site.transactional_id, Fate.HELD)
        site.write(producer, b"first try")
        producer.send_offsets(site.group, site.topic, 10)
        producer.send_offsets(site.group, site.topic, 10)  # the same ones can come in any order
        with pytest.raises(AbortableError, match="earlier offsets of group"):
            producer.send_offsets(site.group, site.topic, 20)
        late.deliver()
        producer.abort()
        site.write(producer, b"second try")
        producer.send_offsets(site.group, site.topic, 20)
        producer.commit()
        assert site.offset() == 20


@on_version_1
def test_a_producer_whose_id_was_taken_over_leaves_the_id_alone(site: Site) -> None:
    """Raising the epoch after a lost response would abort the next owner's transaction."""
    with closing(site.producer()) as older:
        site.write(older, b"older")
        site.proxy.catch(END_TXN, site.transactional_id, Fate.UNHEARD)
        older.commit()
        with closing(site.producer()) as newer:
            site.write(newer, b"newer")
            newer.send_offsets(site.group, site.topic, 20)
            with pytest.raises(FencedError, match="none of its transactions was changed"):
                site.write(older, b"fenced")
                older.commit()
            newer.commit()
            assert site.offset() == 20


@on_version_1
def test_a_transaction_opened_by_a_late_request_is_ended_by_its_own_producer(site: Site) -> None:
    """No InitProducerId ends it, which would fence the producer; nor does it stay open before readers."""
    with closing(site.producer()) as producer:
        late = site.proxy.catch(ADD_PARTITIONS, site.transactional_id, Fate.HELD)
        site.write(producer, b"first")
        producer.commit()
        site.wire.wait_until_settled(site.transactional_id)
        late.deliver()
        assert site.wire.describe(site.transactional_id).state == "Ongoing"
        before = site.wire.describe(site.transactional_id).identity
        site.write(producer, b"second")
        assert site.wire.describe(site.transactional_id).identity == before.bumped()
        producer.commit()


@on_version_1
def test_after_a_response_no_new_epoch_is_needed(site: Site) -> None:
    with closing(site.producer()) as producer:
        site.write(producer, b"first")
        producer.commit()
        epoch = site.wire.describe(site.transactional_id).identity
        for value in (b"second", b"third"):
            site.write(producer, value)
            producer.commit()
        assert site.wire.describe(site.transactional_id).identity == epoch
