"""franz-go while its broker is killed."""

from __future__ import annotations

import pytest

from tests.interop.case_program import CaseProgram
from tests.interop.killed_brokers import RECORDS, SIZE, SOURCE, TARGET, KillableCluster, killable

__all__ = ["killable"]


@pytest.mark.matrix
def test_copy_while_the_broker_is_killed_is_exactly_once(
    program: CaseProgram, killable: KillableCluster, group: str, transactional_id: str
) -> None:
    killable.prepare(group)
    names = {"topic": SOURCE, "target": TARGET, "transactionalId": transactional_id, "group": group}
    inputs = {"count": RECORDS, "size": SIZE, "committed": True}
    copying = program.start("copy", servers=killable.bootstrap_servers, **names, **inputs)
    killable.kill_while(copying)
    killable.check(group)
