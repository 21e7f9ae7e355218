"""Two-phase commit on real brokers of each tier: ends, crashes, zombies and timeouts."""

from __future__ import annotations

import pytest

from dualwrite.errors import (
    DualWriteError,
    FencedError,
    PreparedTransactionLost,
    UnsupportedByBrokerError,
)
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import ProducerState
from tests.interop.wire import NO_IDENTITY, Code, End, Init, Wire

from .clusters import Cluster, killed_after_prepare
from .conftest import MakeFace, NewName
from .faces import FACES, Face
from .reading import read_committed

NOTHING = PreparedTxnState()


@pytest.fixture
def producer(cluster: Cluster, face: str, transactional_id: str, make_face: MakeFace) -> Face:
    made = make_face(face, cluster.settings(transactional_id))
    made.init_transactions()
    return made


def committed(cluster: Cluster, topic: str) -> list[bytes]:
    return read_committed({"bootstrap.servers": cluster.bootstrap_servers}, topic)


def test_no_earlier_pair_is_taken_for_the_new_owners(
    cluster: Cluster, producer: Face, face: str, make_face: MakeFace, transactional_id: str
) -> None:
    """By the pair before the current one, InitProducerId (KIP-360) and an abort (KIP-890) may count as a repetition."""
    successor = make_face(face, cluster.settings(transactional_id))
    successor.init_transactions(keep_prepared_txn=True)
    successor.complete_transaction(NOTHING)
    with Wire(cluster.bootstrap_servers) as wire:
        current = cluster.wait_until_settled(transactional_id).identity
        assert wire.init(transactional_id, current.bumped(-1)) == Init(Code.PRODUCER_FENCED, NO_IDENTITY)
        if cluster.tier is not Tier.BOUNDED_V1:
            assert wire.end(transactional_id, current.bumped(-1), commit=False) == End(Code.PRODUCER_FENCED)
        assert wire.describe(transactional_id).identity == current


def test_the_guarantee_is_found_out(cluster: Cluster, face: str, make_face: MakeFace, transactional_id: str) -> None:
    producer = make_face(face, cluster.settings(transactional_id))
    producer.init_transactions()
    assert producer.guarantee.tier is cluster.tier
    assert producer.guarantee.bounded_ms == (900_000 if cluster.is_bounded else None)


def test_a_bound_has_to_be_accepted(cluster: Cluster, face: str, make_face: MakeFace, transactional_id: str) -> None:
    producer = make_face(face, cluster.settings(transactional_id) | {"accept_bounded_guarantee": False})
    if not cluster.is_bounded:
        producer.init_transactions()
        return
    with pytest.raises(UnsupportedByBrokerError, match=rf"tier {int(cluster.tier)}.*accept\.bounded\.guarantee=true"):
        producer.init_transactions()


def test_ends(cluster: Cluster, producer: Face, topic: str, transactional_id: str) -> None:
    producer.write(topic, b"committed", b"too")
    producer.commit_transaction()
    cluster.wait_for_state(transactional_id, "CompleteCommit")
    producer.write(topic, b"aborted")
    producer.abort_transaction()
    cluster.wait_for_state(transactional_id, "CompleteAbort")
    prepared = producer.prepare(topic, b"prepared, aborted")
    described = cluster.describe(transactional_id)
    assert described.state == "Ongoing"
    assert str(prepared) == f"{described.identity.producer_id}:{described.identity.producer_epoch}"
    producer.complete_transaction(NOTHING)
    cluster.wait_for_state(transactional_id, "CompleteAbort")
    again = producer.prepare(topic, b"prepared, committed")
    assert again != prepared, "a pair names one transaction"
    producer.complete_transaction(again)
    cluster.wait_for_state(transactional_id, "CompleteCommit")
    assert producer.state is ProducerState.READY
    assert committed(cluster, topic) == [b"committed", b"too", b"prepared, committed"]


@pytest.mark.parametrize(("predecessor", "face", "decision"), [("sync", "async", "commit"), ("async", "sync", "abort")])
def test_killed_after_prepare(
    predecessor: str,
    face: str,
    decision: str,
    cluster: Cluster,
    make_face: MakeFace,
    topic: str,
    transactional_id: str,
) -> None:
    settings = cluster.settings(transactional_id)
    prepared = killed_after_prepare(predecessor, settings, topic, b"in doubt")
    successor = make_face(face, settings)
    successor.init_transactions(keep_prepared_txn=True)
    assert cluster.describe(transactional_id).state == "Ongoing"
    successor.complete_transaction(prepared if decision == "commit" else NOTHING)
    cluster.wait_until_settled(transactional_id)
    successor.write(topic, b"next")
    successor.commit_transaction()
    assert committed(cluster, topic) == ([b"in doubt", b"next"] if decision == "commit" else [b"next"])


def test_completed_twice(cluster: Cluster, make_face: MakeFace, topic: str, transactional_id: str) -> None:
    """Two processes resolve the same crash one after the other: the second finds it done."""
    settings = cluster.settings(transactional_id)
    prepared = killed_after_prepare("sync", settings, topic, b"once")
    for face in FACES:
        successor = make_face(face, settings)
        successor.init_transactions(keep_prepared_txn=True)
        successor.complete_transaction(prepared)
        assert successor.state is ProducerState.READY
        cluster.wait_until_settled(transactional_id)
    assert committed(cluster, topic) == [b"once"]


def test_zombies_are_fenced(
    cluster: Cluster, producer: Face, face: str, make_face: MakeFace, topic: str, transactional_id: str
) -> None:
    prepared = producer.prepare(topic, b"of the zombie")
    successor = make_face(face, cluster.settings(transactional_id))
    successor.init_transactions(keep_prepared_txn=True)
    successor.complete_transaction(NOTHING)
    successor.write(topic, b"of the successor")
    with pytest.raises(DualWriteError) as caught:
        producer.complete_transaction(prepared)
    assert isinstance(caught.value, FencedError | PreparedTransactionLost), repr(caught.value)
    successor.commit_transaction()
    with pytest.raises(DualWriteError):
        producer.write(topic, b"of the zombie, again")
    cluster.wait_for_state(transactional_id, "CompleteCommit")
    assert committed(cluster, topic) == [b"of the successor"]


@pytest.mark.parametrize("cluster", [Tier.BOUNDED, Tier.BOUNDED_V1], indirect=True, ids=["tier 3", "tier 4"])
def test_a_transaction_prepared_beyond_its_timeout(
    cluster: Cluster, make_face: MakeFace, topic: str, transactional_id: str
) -> None:
    settings = cluster.settings(transactional_id, transaction_timeout_ms=1000)
    prepared = killed_after_prepare("sync", settings, topic, b"too late")
    lost = cluster.wait_for_state(transactional_id, "CompleteAbort").identity
    for face in FACES:  # nothing was changed by the first
        successor = make_face(face, settings)
        with pytest.raises(PreparedTransactionLost) as caught:
            successor.init_transactions(keep_prepared_txn=True)
            successor.complete_transaction(prepared)
        error = caught.value
        assert (error.transactional_id, error.prepared_state) == (transactional_id, str(prepared))
        assert error.described_state == "CompleteAbort"
        assert (error.described_producer_id, error.described_producer_epoch) == (lost.producer_id, lost.producer_epoch)
    assert committed(cluster, topic) == []
    seen_to = make_face("sync", settings)
    seen_to.init_transactions()
    seen_to.write(topic, b"by hand")
    seen_to.commit_transaction()
    assert committed(cluster, topic) == [b"by hand"]


@pytest.mark.parametrize("cluster", [Tier.STORED_PAIR], indirect=True, ids=["tier 2"])
def test_without_a_timeout(cluster: Cluster, make_face: MakeFace, topic: str, new_name: NewName) -> None:
    """The broker keeps looking for expired transactions, and leaves prepared ones alone."""
    name, impatient = new_name("txn"), new_name("txn")
    producer = make_face("sync", cluster.settings(name))
    producer.init_transactions()
    prepared = producer.prepare(topic, b"patient")
    other = make_face(
        "sync",
        {
            "bootstrap_servers": cluster.bootstrap_servers,
            "transactional_id": impatient,
            "transaction_timeout_ms": 200,
        },
    )
    other.init_transactions()
    other.write(topic, b"impatient")
    cluster.wait_for_state(impatient, "CompleteAbort")
    assert cluster.describe(name).state == "Ongoing"
    producer.complete_transaction(prepared)
    assert committed(cluster, topic) == [b"patient"]
