"""What Kafka aborted although the database had decided it is published again, once; what was committed never is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.guarantee import Tier
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from tests.recipes.repairs import Way, let_end, nodes_for, site_of, sqlite_store, ways_of
from tests.recipes.test_tiers import write
from tests.support.databases import Database

TIERS_AND_WAYS = [(tier, way) for tier in Tier for way in ways_of(tier)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    made = sqlite_store(tmp_path)
    yield made
    made.close()


# ---- aborted against the decision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("via", ["recover", "write"])
@pytest.mark.parametrize(("tier", "way"), TIERS_AND_WAYS, ids=[f"{tier.name} {way.name}" for tier, way in TIERS_AND_WAYS])
def test_what_was_aborted_against_the_decision_is_published_again(
    store: Database, tier: Tier, way: Way, via: str
) -> None:
    with site_of(tier, store, nodes=nodes_for(way)) as site:
        site.write("before")
        sleeper = site.decided()
        let_end(site, way)
        if via == "recover":
            assert site.recover() is Outcome.REPAIRED
            assert site.recover() is Outcome.NOTHING
        site.write("later")
        site.assert_agreed("before", "decided", "later")
        sleeper.wake()
        site.write("last")
        site.assert_agreed("before", "decided", "later", "last")


@pytest.mark.parametrize("at", PausePoint)
@pytest.mark.parametrize("tier", Tier, ids=[tier.name for tier in Tier])
def test_a_process_that_sleeps_at_any_point(store: Database, tier: Tier, at: PausePoint) -> None:
    """Its transaction is aborted, another process repairs what was decided, and then it goes on."""
    is_decided = at in (PausePoint.AFTER_DATABASE_COMMIT, PausePoint.AFTER_KAFKA_COMMIT)
    for way in (Way.OPERATOR, Way.INITIALISED, Way.TIMEOUT):
        pass
    with site_of(tier, store) as site:
        site.write("before")
        sleeper = site.falls_asleep(at, lambda writer: write(writer, "asleep"))
        let_end(site, ways_of(tier)[0])
        outcome = site.recover()
        assert (outcome is Outcome.REPAIRED) is (at is PausePoint.AFTER_DATABASE_COMMIT)
        site.write("later")
        expected = ["before", "asleep", "later"] if is_decided else ["before", "later"]
        site.assert_agreed(*expected)
        sleeper.wake()
        assert site.recover() is Outcome.NOTHING
        site.write("last")
        site.assert_agreed(*expected, "last")
