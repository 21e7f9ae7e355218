"""Owed records that Kafka refuses to take again: a timestamp is renewed, every other reason is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from dualwrite.broker_emulator import Acl, AclFilter, AclOperation, ResourceType
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.client.records.late import ORIGINAL_TIMESTAMP, Stamp, original, renewed
from dualwrite.errors import ConfigError, DatabaseWentBackError, OwedRecordsRefusedError, RetriableError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.recovery.plan import Action, TakenOut
from tests.recipes.heard import Heard
from tests.recipes.repairs import Site, Way, let_end, site_of, sqlite_store
from tests.recipes.test_repair_evidence import ALLOWED
from tests.recipes.tiers import ROWS, rows, write

HOUR_MS: Final = 3_600_000

every_tier = pytest.mark.parametrize("tier", list(Tier))


@contextmanager
def owing(tier: Tier, directory: Path, *, age_ms: int = 0) -> Iterator[Site]:
    """A decided dual write whose record for `orders` Kafka has aborted; the broker has the time of this machine."""
    now_ms = int(time.time() * 1000)
    with site_of(tier, sqlite_store(directory), clock=VirtualClock(now_ms), acls=ALLOWED) as site:

        def write_then(writer: Any) -> None:
            with writer.transaction() as tx:
                tx.connection.execute(ROWS.insert().values(value="decided"))
                tx.send("orders", "decided", partition=0, timestamp_ms=now_ms - age_ms, headers=[("own", b"1")])

        site.falls_asleep(PausePoint.AFTER_DATABASE_COMMIT, write_then)
        let_end(site, Way.OPERATOR)
        yield site


# ---- timestamps -----------------------------------------------------------------------------------------------------

LIMITS: Final = {"message.timestamp.before.max.ms": 2 * HOUR_MS, "message.timestamp.after.max.ms": -2 * HOUR_MS}
"""The settings of a topic, and the age of a record that they refuse if they are an hour."""


def by_recover(site: Site) -> None:
    assert site.recover() is Outcome.REPAIRED


def by_block(site: Site) -> None:
    with site.writer() as writer:
        with pytest.raises(RetriableError, match="repeat the block"):
            write(writer, "later")
        assert rows(site.store.aside) == ["decided"]
        write(writer, "later")


def by_service(site: Site) -> None:
    (found,) = site.serviced().found
    assert (found.action, found.changed) == (Action.REPAIR, True)


@pytest.mark.parametrize("setting", list(LIMITS))
@pytest.mark.parametrize("repair", [by_recover, by_block, by_service])
@every_tier
def test_a_record_gets_a_new_timestamp_and_keeps_the_old_one(
    tier: Tier, repair: Callable[[Site], None], setting: str, tmp_path: Path
) -> None:
    with owing(tier, tmp_path, age_ms=LIMITS[setting]) as site:
        old_ms = site.emulator.clock.now_ms() - LIMITS[setting]
        site.emulator.set_config({setting: str(HOUR_MS)}, topic="orders")
        repair(site)
        assert site.committed() == rows(site.store.aside)
        record = site.emulator.records("orders", 0)[0]  # which is not older than an hour: the topic has taken it
        assert [tuple(header) for header in record.headers] == [("own", b"1"), (ORIGINAL_TIMESTAMP, b"%d" % old_ms)]


@every_tier
def test_a_restored_database_does_not_publish_the_block_a_third_time(tier: Tier, tmp_path: Path) -> None:
    with owing(tier, tmp_path, age_ms=2 * HOUR_MS) as site:
        row, text = str(site.row()), site.text()
        site.emulator.set_config({"message.timestamp.before.max.ms": str(HOUR_MS)}, topic="orders")
        assert site.recover() is Outcome.REPAIRED
        site.change_row(prepared_transaction_state=row, manifest=text)
        with site.writer() as writer, pytest.raises(DatabaseWentBackError, match="has published its records again"):
            writer.recover()
        assert site.committed() == ["decided"]


def test_the_first_timestamp_is_kept() -> None:
    twice = renewed(*renewed([("own", None)], 5, 100), 200)
    assert twice == Stamp([("own", None), (ORIGINAL_TIMESTAMP, b"5")], 200)
    assert original(*twice) == Stamp([("own", None)], 5)
    not_ours = Stamp([(ORIGINAL_TIMESTAMP, b"yesterday")], 7)
    assert original(*not_ours) == not_ours


# ---- changes by a person --------------------------------------------------------------------------------------------

Change = Callable[[Site], object]


def set_to(name: str, value: str | None) -> Change:
    return lambda site: site.emulator.set_config({name: value}, topic="orders")


def forbid(site: Site) -> None:
    site.emulator.add_acls(Acl.deny("User:ANONYMOUS", AclOperation.WRITE, ResourceType.TOPIC, "orders"))


def allow(site: Site) -> None:
    site.emulator.remove_acls(AclFilter(operation=AclOperation.WRITE))


CAUSES: Final[dict[str, tuple[Change, Change, str]]] = {
    "right": (forbid, allow, "grant this client WRITE on the topic"),
    "size": (set_to("max.message.bytes", "10"), set_to("max.message.bytes", None), "raise max.message.bytes"),
    "key": (
        set_to("cleanup.policy", "compact"),
        set_to("cleanup.policy", None),
        "take 'compact' out of cleanup.policy of the topic",
    ),
}


def epoch(site: Site) -> tuple[int, int]:
    _, producer_id, producer_epoch = site.world.described(site.kafka_id)
    return producer_id, producer_epoch


def refused_ids(heard: Heard) -> list[str]:
    points = heard.points("dualwrite.stored.refused")
    return [point.attributes["messaging.kafka.transactional_id"] for point in points]


def assert_named(error: BaseException | None, remedy: str) -> None:
    assert isinstance(error, OwedRecordsRefusedError)
    assert (error.transactional_id, error.seq, error.topic) == ("tid", 0, "orders")
    assert remedy in str(error)
    assert "dualwrite recover --take-out tid:0 --apply" in str(error)


@pytest.mark.parametrize("cause", list(CAUSES))
@every_tier
@pytest.mark.usefixtures("nothing_refused")
def test_refused_owed_records_are_named_and_tried_again_once_a_minute(
    tier: Tier, cause: str, tmp_path: Path, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    begin, end, remedy = CAUSES[cause]
    with owing(tier, tmp_path) as site, site.writer() as writer:
        begin(site)
        with pytest.raises(OwedRecordsRefusedError) as first:
            write(writer, "refused")
        assert_named(first.value, remedy)
        assert refused_ids(heard) == ["tid"]
        before = epoch(site)
        for _ in range(5):
            with pytest.raises(OwedRecordsRefusedError) as raised:
                write(writer, "refused")
            assert_named(raised.value, remedy)
        assert epoch(site) == before
        writer.coordinator._publishing._not_before_s = 0.0  # a minute later
        with pytest.raises(OwedRecordsRefusedError):
            write(writer, "refused")
        assert epoch(site) != before
        assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1
        end(site)
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        write(writer, "later")
        assert refused_ids(heard) == []
        site.assert_agreed("decided", "later")


@every_tier
def test_the_recovery_service_names_a_refused_block_and_takes_it_out(tier: Tier, tmp_path: Path) -> None:
    kept: list[TakenOut] = []

    def fail(_: TakenOut) -> None:
        raise OSError("the disk is full")

    with owing(tier, tmp_path, age_ms=5) as site:
        forbid(site)
        (found,) = site.serviced().found
        assert (found.action, found.changed, found.is_left) == (Action.REFUSED, False, True)
        assert "dualwrite recover --take-out tid:0 --apply" in (found.error or "")
        row = site.row(), site.text()
        with pytest.raises(ConfigError, match="requires keep"):
            site.serviced(take_out_owed=["tid"])
        with pytest.raises(OSError, match="the disk is full"):
            site.serviced(take_out_owed=["tid"], keep=fail)
        assert (site.row(), site.text()) == row

        report = site.serviced(take_out_owed=["tid"], keep=kept.append)
        assert [(found.action, found.changed) for found in report.found] == [(Action.TAKE_OUT, True)]
        (taken,) = report.taken_out
        assert taken.changed
        assert [each.records for each in kept] == [taken.records]
        assert [(each.topic, each.partition, each.value, each.headers) for each in taken.records] == [
            ("orders", 0, b"decided", [("own", b"1")])
        ]
        assert site.serviced().is_clean
        (nothing,) = site.serviced(take_out_owed=["tid"], keep=kept.append).found
        assert (nothing.action, nothing.error) == (
            Action.FAILED,
            "nothing is owed under this id, so nothing was taken out",
        )
        allow(site)
        site.write("later")
        assert site.committed() == ["later"]
        assert rows(site.store.aside) == ["decided", "later"]
