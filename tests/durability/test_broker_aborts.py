"""Databases that fail, with the broker's aborts in between: both sides agree, or all is refused before it is written.

The tables of `broker_aborts.py` say which: one answer for each case. Each server is started once, and its failure
strikes all cases of an event at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import pytest
import sqlalchemy as sa

from dualwrite.errors import OutcomeUnknown
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from tests.durability.broker_aborts import (
    CASES,
    KEPT,
    OLDER_THAN_P,
    OLDER_THAN_Q,
    TABLE,
    Broker,
    Case,
    Site,
    Verdict,
    world_of,
)
from tests.support.conditions import until
from tests.support.postgres_pair import PostgresNode, PostgresPair

pytestmark = pytest.mark.timeout(600)  # the first test of an event prepares all of it

_DEADLINE_S: Final = 60
_numbers = count(1)


class Stage(NamedTuple):
    """Cases that one event has struck."""

    sites: dict[Case, Site]
    verdicts: dict[Broker, Verdict]


def ask(url: sa.URL, *statements: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def new_database(node: PostgresNode) -> sa.URL:
    name = f"aborts_{next(_numbers)}"
    ask(node.url, f"CREATE DATABASE {name}")
    url = node.url.set(database=name)
    ask(url, TABLE)
    return url


class Staging:
    """The steps of all cases of an event, and the servers that live as long."""

    def __init__(self, lives: ExitStack, cases: Sequence[Case]) -> None:
        self._lives = lives
        self._cases = cases
        self.sites: dict[Case, Site] = {}

    def settle(self, url: sa.URL, **settings: Any) -> None:
        """Give each case a broker, and an application on the database."""
        for number, case in enumerate(self._cases):
            world = self._lives.enter_context(world_of(case, f"t{number}"))
            self.sites[case] = Site(case, world, url, f"t{number}", f"tid-{number}", settings)

    def each(self, step: Callable[[Site], object]) -> None:
        for site in self.sites.values():
            step(site)

    def steps(self, *, before: Callable[[], None] | None = None, between: Callable[[], None] | None = None) -> None:
        """All steps up to the event. `before`: P; `between`: P and its repair."""
        self.each(Site.begin)
        if before is not None:
            before()
        self.each(Site.decide)
        if between is not None:
            between()
        self.each(Site.go_on)

    def end(self, verdicts: dict[Broker, Verdict]) -> Stage:
        return Stage(self.sites, verdicts)


# ---- the events -----------------------------------------------------------------------------------------------------


@contextmanager
def failover(empty: PostgresNode, cases: Sequence[Case]) -> Iterator[Stage]:
    """Fail over to a synchronous standby."""
    with ExitStack() as lives:
        pair = lives.enter_context(PostgresPair()).start(empty)
        staging = Staging(lives, cases)
        url = new_database(pair.primary)
        staging.settle(url)
        staging.steps()
        standby = pair.fail_over()
        staging.each(lambda site: setattr(site, "url", standby.url.set(database=url.database)))
        yield staging.end(KEPT)


@contextmanager
def one_server(empty: PostgresNode, cases: Sequence[Case]) -> Iterator[tuple[PostgresNode, Staging]]:
    with ExitStack() as lives:
        node = lives.enter_context(PostgresPair()).primary
        node.copy(empty)
        node.start()
        yield node, Staging(lives, cases)


@contextmanager
def crash(empty: PostgresNode, cases: Sequence[Case]) -> Iterator[Stage]:
    """Crash a server whose commits need not be on the disk."""
    with one_server(empty, cases) as (node, staging):
        url = new_database(node)
        ask(url, f"ALTER DATABASE {url.database} SET synchronous_commit = off")
        staging.settle(url)
        staging.steps()
        node.crash()
        node.start()
        yield staging.end(KEPT)


@contextmanager
def restore(empty: PostgresNode, cases: Sequence[Case], *, when: str) -> Iterator[Stage]:
    """Restore a backup that is older than P (`before`), or than its repair alone (`between`)."""
    with one_server(empty, cases) as (node, staging):
        staging.settle(new_database(node))
        staging.steps(**{when: node.back_up})
        node.restore()
        yield staging.end(OLDER_THAN_P if when == "before" else OLDER_THAN_Q)


Event = Callable[[PostgresNode, Sequence[Case]], AbstractContextManager[Stage]]

EVENTS: Final[dict[str, Event]] = {
    "failover": failover,
    "crash": crash,
    "restore-before": partial(restore, when="before"),
    "restore-between": partial(restore, when="between"),
}

ONE: Final = Case(Tier.BOUNDED, Broker.REPAIRED, "psycopg")
"""The case that `make test` runs of each event."""


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, empty_node: PostgresNode) -> Iterator[Stage]:
    with EVENTS[request.param](empty_node, CASES) as struck:
        yield struck


@pytest.mark.parametrize("event", EVENTS)
def test_one_case_of_each_event(event: str, empty_node: PostgresNode) -> None:
    with EVENTS[event](empty_node, [ONE]) as struck:
        struck.sites[ONE].judge(struck.verdicts[ONE.broker])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("stage", EVENTS, indirect=True)
def test_the_broker_aborts_before_or_after_the_event(stage: Stage, case: Case) -> None:
    stage.sites[case].judge(stage.verdicts[case.broker])


# ---- a commit that waits for the standby ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["lost", "kept"])
def waited(request: pytest.FixtureRequest, empty_node: PostgresNode) -> Iterator[Stage]:
    """The broker aborts a dual write that waits for an absent standby; then the standby takes over, or comes back."""
    cases = [case for case in CASES if case.broker is Broker.OPERATOR]
    with ExitStack() as lives:
        pair = lives.enter_context(PostgresPair()).start(empty_node)
        staging = Staging(lives, cases)
        url = new_database(pair.primary)
        staging.settle(url, resolve_timeout_ms=1_000)
        waiting = {site: Waiting(site) for site in staging.sites.values()}
        pair.standby.crash()
        for site, writing in waiting.items():
            writing.go_on()
            until(lambda: pair.primary.waiting_backends == 1)
            site.abort()
            cancel_waits(pair)
            assert isinstance(writing.ended(), OutcomeUnknown)
            until(lambda: cancel_waits(pair) == 0)  # its own attempt to make its row durable may wait still
        if request.param == "kept":
            pair.start_standby()
            yield staging.end(KEPT)
            return
        standby = pair.fail_over()
        staging.each(lambda site: setattr(site, "url", standby.url.set(database=url.database)))
        yield staging.end({Broker.OPERATOR: Verdict(Outcome.NOTHING, ("before",))})


def cancel_waits(pair: PostgresPair) -> int:
    """End all waits for the standby; return how many there were."""
    found = pair.primary.waiting_backends
    pair.primary.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    return found


class Waiting(threading.Thread):
    """A process that has written with the standby, and goes on without it."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._ready, self._goes_on = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self.start()
        assert self._ready.wait(_DEADLINE_S)

    def run(self) -> None:
        try:
            with self._site.writer() as writer:
                self._site.put(writer, "before")
                self._ready.set()
                self._goes_on.wait(_DEADLINE_S)
                self._site.put(writer, "decided")
        except BaseException as error:
            self._error = error

    def go_on(self) -> None:
        self._goes_on.set()

    def ended(self) -> BaseException | None:
        """The error that it raised, once it has ended."""
        self.join(_DEADLINE_S)
        assert not self.is_alive()
        return self._error


@pytest.mark.parametrize("case", [case for case in CASES if case.broker is Broker.OPERATOR], ids=str)
def test_the_broker_aborts_while_the_commit_waits(waited: Stage, case: Case) -> None:
    waited.sites[case].judge(waited.verdicts[case.broker])
