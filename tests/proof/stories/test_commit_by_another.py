"""Found by the search: {b'a2'} are visible, and were not committed.

 1. P0 -> database: locks the row and reads it
 2. P0 -> coordinator: DescribeTransaction()
    coordinator -> P0: TRANSACTIONAL_ID_NOT_FOUND,
 3. P0 -> coordinator: InitProducerId(2pc, keep)
    coordinator -> P0: 1:0
        coordinator: - => Empty 1:0
 4. P0 -> database: reads the row under its lock
 5. P0 -> database: reads the row under its lock
 6. P0 -> database: reads the row under its lock
 7. P0 -> leader of orders-0: Produce(1:0, sequence=0, records=(b'a1',))
    leader of orders-0 -> P0: Produced(base_offset=0)
        coordinator: Empty 1:0 => Ongoing 1:0
        log: 1:0=a1
 8. P0 -> database: commits the database
        row: - => 1:0
        table: a1
 9. P1 -> database: locks the row and reads it
10. P1 -> coordinator: DescribeTransaction()
    coordinator -> P1: Ongoing, 1:0
11. P1 -> coordinator: InitProducerId(2pc, keep)
    coordinator -> P1: 1:1, ongoing 1:0
12. P0 -> coordinator: EndTxn(1:0, commit)
    coordinator -> P0: PRODUCER_FENCED
13. P1 -> database: reads the row under its lock
14. P1 -> coordinator: EndTxn(1:1, commit)
    coordinator -> P1: 1:2
        coordinator: Ongoing 1:0 => PrepareCommit 1:1
15. P0 -> coordinator: DescribeTransaction()
    coordinator -> P0: PrepareCommit, 1:1
16. database -> P1: the database ends a connection
17. P0 -> database: locks the row and reads it
18. P0 -> leader of orders-0: Produce(1:0, sequence=1, records=(b'a2',))
    leader of orders-0 -> P0: Produced(base_offset=1)
        log: 1:0=a1 1:0=a2
19. coordinator -> leader of orders-0: the marker is written
        coordinator: PrepareCommit 1:1 => CompleteCommit 1:2
        log: 1:0=a1 1:0=a2 1:1+
"""

from __future__ import annotations

from dualwrite.testing.postgres import PostgresServer
from tests.proof.replay import assert_holds
from tests.proof.story import Setting
from tests.proof.world import Budget

SETTING = Setting(tier=1, budget=Budget(kills=1), written=((b"a1", b"a2"), (b"b1",)), after_crash=(), by_commit=False)

STEPS = (
    "answered: P0 -> database: locks the row and reads it",
    "answered: P0 -> coordinator: DescribeTransaction() => TRANSACTIONAL_ID_NOT_FOUND, ",
    "answered: P0 -> coordinator: InitProducerId(2pc, keep) => 1:0",
    "answered: P0 -> database: reads the row under its lock",
    "answered: P0 -> database: reads the row under its lock",
    "answered: P0 -> database: reads the row under its lock",
    "answered: P0 -> leader of orders-0: Produce(1:0, sequence=0, records=(b'a1',)) => Produced(base_offset=0)",
    "answered: P0 -> database: commits the database",
    "answered: P1 -> database: locks the row and reads it",
    "answered: P1 -> coordinator: DescribeTransaction() => Ongoing, 1:0",
    "answered: P1 -> coordinator: InitProducerId(2pc, keep) => 1:1, ongoing 1:0",
    "answered: P0 -> coordinator: EndTxn(1:0, commit) => PRODUCER_FENCED",
    "answered: P1 -> database: reads the row under its lock",
    "answered: P1 -> coordinator: EndTxn(1:1, commit) => 1:2",
    "answered: P0 -> coordinator: DescribeTransaction() => PrepareCommit, 1:1",
    "the database ends a connection: database -> P1: the database ends a connection",
    "answered: P0 -> database: locks the row and reads it",
    "answered: P0 -> leader of orders-0: Produce(1:0, sequence=1, records=(b'a2',)) => Produced(base_offset=1)",
    "the marker is written: coordinator -> leader of orders-0: the marker is written",
)


def test_it_holds(postgres_server: PostgresServer) -> None:
    assert_holds(SETTING, STEPS, postgres_server)
