"""Lost connections, above all a lost response to COMMIT: the state row shows whether the commit was applied."""

from __future__ import annotations

import pytest

from dualwrite.errors import OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.testing.conformance.site import Site
from dualwrite.testing.network_proxy import NetworkProxy


@pytest.fixture
def proxy(site: Site) -> NetworkProxy:
    if site.proxy is None:
        pytest.skip("this database is not reached over a socket: there is no connection to lose")
    return site.proxy


class At:
    """A pause hook that acts once, when its pause point is first reached."""

    def __init__(self, point: PausePoint, act: object) -> None:
        self._point: PausePoint | None = point
        self._act = act

    def __call__(self, point: PausePoint) -> None:
        if point is self._point:
            self._point = None
            self._act()  # type: ignore[operator]


def test_a_pool_of_lost_connections_is_no_obstacle(site: Site, proxy: NetworkProxy) -> None:
    with site.writer() as writer:
        with writer.transaction() as tx:
            first = site.put(tx)
        proxy.cut()
        with writer.transaction() as tx:
            second = site.put(tx)
    site.assert_both_hold(first, second)


@pytest.mark.parametrize("point", [PausePoint.AFTER_LOCK, PausePoint.AFTER_PREPARE, PausePoint.AFTER_STATE_WRITE])
def test_a_connection_that_is_lost_before_commit_writes_neither(
    site: Site, proxy: NetworkProxy, point: PausePoint
) -> None:
    with site.writer(At(point, proxy.cut)) as writer:
        with pytest.raises(Exception) as caught, writer.transaction() as tx:
            site.put(tx)
        assert not isinstance(caught.value, OutcomeUnknown)
        assert tx.outcome is Outcome.ROLLED_BACK
        with writer.transaction() as tx:
            text = site.put(tx)
    site.assert_both_hold(text)


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_without_a_response_is_resolved_in_the_block(site: Site, proxy: NetworkProxy, applied: bool) -> None:
    lose = proxy.swallow_answer_to if applied else proxy.cut_at
    expected = []
    with site.writer(At(PausePoint.BEFORE_DATABASE_COMMIT, lambda: lose(lambda request: True))) as writer:
        try:
            with writer.transaction() as tx:
                expected.append(site.put(tx))
        except Exception:
            expected.clear()
        assert bool(expected) is applied
        assert tx.outcome is (Outcome.COMMITTED if applied else Outcome.ROLLED_BACK)
        assert writer.state is SlotState.READY
        with writer.transaction() as tx:
            expected.append(site.put(tx))
    site.assert_both_hold(*expected)


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_is_resolved_later_if_the_database_cannot_be_reached(
    site: Site, proxy: NetworkProxy, applied: bool
) -> None:
    lose = proxy.swallow_answer_to if applied else proxy.cut_at

    def lose_everything() -> None:
        lose(lambda request: True)
        proxy.refuse()

    with site.writer(At(PausePoint.BEFORE_DATABASE_COMMIT, lose_everything), resolve_timeout_ms=200) as writer:
        with pytest.raises(OutcomeUnknown), writer.transaction() as tx:
            text = site.put(tx)
        proxy.accept_again()
        (found,) = writer.recover()
        assert found.outcome is (Outcome.COMMITTED if applied else Outcome.ROLLED_BACK)
    site.assert_both_hold(*[text] * applied)


def test_the_lock_of_a_lost_connection_is_free_again(site: Site, proxy: NetworkProxy) -> None:
    """At once here, because the server sees the connection close; if it does not, it needs shorter TCP keepalive."""
    store = site.store()
    with site.engine.connect() as lost:
        store.lock(lost, site.transactional_id, timeout_ms=None)
        proxy.cut()
        with site.engine.begin() as connection:
            store.lock(connection, site.transactional_id, timeout_ms=20_000)
        lost.invalidate()
