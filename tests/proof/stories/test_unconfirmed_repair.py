"""Found by the search: frozenset({b'a1'}) are committed, and not visible.

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
14. foreign program -> coordinator: a foreign program initialises the id
        coordinator: Ongoing 1:0 => PrepareAbort 1:1
15. P0 -> coordinator: DescribeTransaction()
    coordinator -> P0: PrepareAbort, 1:1
16. coordinator -> leader of orders-0: the marker is written
        coordinator: PrepareAbort 1:1 => CompleteAbort 1:2
        log: 1:0=a1 1:1-
17. P1 -> coordinator: EndTxn(1:1, commit)
    coordinator -> P1: PRODUCER_FENCED
18. P1 -> coordinator: DescribeTransaction()
    coordinator -> P1: CompleteAbort, 1:2
19. P0 -> database: locks the row and reads it
20. P0 -> coordinator: DescribeTransaction()
    coordinator -> P0: CompleteAbort, 1:2
21. P0 -> coordinator: InitProducerId(2pc, keep, max:0)
    coordinator -> P0: INVALID_REQUEST
22. P0 -> database: reads the row under its lock
23. P0 -> database: reads the row under its lock
24. P0 -> leader of orders-0: EndOf(1:0, first_offset=0)
    leader of orders-0 -> P0: ABORTED
25. P0 -> leader of orders-0: RepairOf(1:0, first_offset=0)
    leader of orders-0 -> P0: ok
26. P0 -> leader of orders-0: RecordsOf(1:0, first_offset=0)
    leader of orders-0 -> P0: (b'a1',)
27. P0 -> coordinator: InitProducerId(2pc, keep) (delayed, and its caller gives up)
28. operator -> a new process: recover() is called
29. P2 -> database: locks the row and reads it
30. P2 -> coordinator: DescribeTransaction()
    coordinator -> P2: CompleteAbort, 1:2
31. P2 -> coordinator: InitProducerId(2pc, keep, max:0)
    coordinator -> P2: INVALID_REQUEST
32. P2 -> database: reads the row under its lock
33. P2 -> database: reads the row under its lock
34. P2 -> leader of orders-0: EndOf(1:0, first_offset=0)
    leader of orders-0 -> P2: ABORTED
35. P2 -> leader of orders-0: RepairOf(1:0, first_offset=0)
    leader of orders-0 -> P2: ok
36. P2 -> leader of orders-0: RecordsOf(1:0, first_offset=0)
    leader of orders-0 -> P2: (b'a1',)
37. P2 -> coordinator: InitProducerId(2pc, keep)
    coordinator -> P2: 1:3
        coordinator: CompleteAbort 1:2 => Empty 1:3
38. P2 -> database: reads the row under its lock
39. P2 -> database: reads the row under its lock
40. P2 -> leader of orders-0: Produce(1:3, sequence=0, records=(b'a1',))
    leader of orders-0 -> P2: Produced(base_offset=2)
        coordinator: Empty 1:3 => Ongoing 1:3
        log: 1:0=a1 1:1- 1:3=a1
41. P2 -> database: commits the database
        row: 1:0 => 1:3
42. network -> coordinator: InitProducerId(2pc, keep) (arrives late)
    coordinator -> nobody: 1:4, ongoing 1:3
43. P2 -> coordinator: EndTxn(1:3, commit)
    coordinator -> P2: PRODUCER_FENCED
44. P2 -> coordinator: DescribeTransaction()
    coordinator -> P2: Ongoing, 1:3
"""

from __future__ import annotations

from dualwrite.testing.postgres import PostgresServer
from tests.proof.replay import assert_holds
from tests.proof.story import Setting
from tests.proof.world import Budget

SETTING = Setting(
    tier=1, budget=Budget(give_ups=1, foreigners=1), written=((b"a1",), (b"b1",)), after_crash=(b"c1",), by_commit=False
)

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
    "a foreign program initialises the id: foreign program -> coordinator: a foreign program initialises the id",
    "answered: P0 -> coordinator: DescribeTransaction() => PrepareAbort, 1:1",
    "the marker is written: coordinator -> leader of orders-0: the marker is written",
    "answered: P1 -> coordinator: EndTxn(1:1, commit) => PRODUCER_FENCED",
    "answered: P1 -> coordinator: DescribeTransaction() => CompleteAbort, 1:2",
    "answered: P0 -> database: locks the row and reads it",
    "answered: P0 -> coordinator: DescribeTransaction() => CompleteAbort, 1:2",
    "answered: P0 -> coordinator: InitProducerId(2pc, keep, max:0) => INVALID_REQUEST",
    "answered: P0 -> database: reads the row under its lock",
    "answered: P0 -> database: reads the row under its lock",
    "answered: P0 -> leader of orders-0: EndOf(1:0, first_offset=0) => ABORTED",
    "answered: P0 -> leader of orders-0: RepairOf(1:0, first_offset=0) => ok",
    "answered: P0 -> leader of orders-0: RecordsOf(1:0, first_offset=0) => (b'a1',)",
    "delayed, and its caller gives up: P0 -> coordinator: InitProducerId(2pc, keep)",
    "recover() is called: operator -> a new process: recover() is called",
    "answered: P2 -> database: locks the row and reads it",
    "answered: P2 -> coordinator: DescribeTransaction() => CompleteAbort, 1:2",
    "answered: P2 -> coordinator: InitProducerId(2pc, keep, max:0) => INVALID_REQUEST",
    "answered: P2 -> database: reads the row under its lock",
    "answered: P2 -> database: reads the row under its lock",
    "answered: P2 -> leader of orders-0: EndOf(1:0, first_offset=0) => ABORTED",
    "answered: P2 -> leader of orders-0: RepairOf(1:0, first_offset=0) => ok",
    "answered: P2 -> leader of orders-0: RecordsOf(1:0, first_offset=0) => (b'a1',)",
    "answered: P2 -> coordinator: InitProducerId(2pc, keep) => 1:3",
    "answered: P2 -> database: reads the row under its lock",
    "answered: P2 -> database: reads the row under its lock",
    "answered: P2 -> leader of orders-0: Produce(1:3, sequence=0, records=(b'a1',)) => Produced(base_offset=2)",
    "answered: P2 -> database: commits the database",
    "arrives late: network -> coordinator: InitProducerId(2pc, keep) => 1:4, ongoing 1:3",
    "answered: P2 -> coordinator: EndTxn(1:3, commit) => PRODUCER_FENCED",
    "answered: P2 -> coordinator: DescribeTransaction() => Ongoing, 1:3",
)


def test_it_holds(postgres_server: PostgresServer) -> None:
    assert_holds(SETTING, STEPS, postgres_server)
