"""A process is killed before or after the decision; the next one completes its transaction by the state row."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from dualwrite.outcome import Outcome
from dualwrite.recipes.core.dual_write import Resolution
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.testing.conformance.site import DEADLINE_S, Site

DECIDED = (PausePoint.AFTER_DATABASE_COMMIT, PausePoint.AFTER_KAFKA_COMMIT)


@pytest.mark.parametrize(
    ("point", "outcome"),
    [
        (PausePoint.AFTER_PREPARE, Outcome.ROLLED_BACK),
        (PausePoint.BEFORE_DATABASE_COMMIT, Outcome.ROLLED_BACK),
        (PausePoint.AFTER_DATABASE_COMMIT, Outcome.COMMITTED),
        (PausePoint.AFTER_KAFKA_COMMIT, Outcome.NOTHING),
    ],
)
def test_a_killed_process_is_recovered(site: Site, point: PausePoint, outcome: Outcome) -> None:
    url = site.url.render_as_string(hide_password=False)
    killed = subprocess.run(
        [
            *(sys.executable, "-m", "dualwrite.testing.conformance.worker", url, site.emulator.bootstrap_servers),
            *(site.transactional_id, site.topic, point),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with site.writer() as writer:
        assert [found.outcome for found in writer.recover()] == ([] if outcome is Outcome.NOTHING else [outcome])
    site.assert_both_hold(*["event 1"] * (point in DECIDED))


def test_several_recover_at_once(site: Site) -> None:
    class Gone(BaseException):
        """Stands for the end of the process."""

    def go(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            raise Gone

    with site.writer(go) as writer, pytest.raises(Gone), writer.transaction() as tx:
        text = site.put(tx)
    found: list[Resolution] = []
    writers = [site.writer() for _ in range(4)]
    threads = [threading.Thread(target=lambda one=one: found.extend(one.recover())) for one in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [each.outcome for each in found] == [Outcome.COMMITTED]
    site.assert_both_hold(text)
