"""A copy with the clients in Python while the broker is killed: the case that a folder inherits."""

from __future__ import annotations

from .foreign_client import ForeignClient
from .killed_brokers import RECORDS, SIZE, SOURCE, TARGET, KillableCluster, in_background


class KilledCopyCases:
    """With the fixtures `client` and `killable`."""

    def test_copy_while_the_broker_is_killed_is_exactly_once(
        self, client: ForeignClient, killable: KillableCluster, group: str, transactional_id: str
    ) -> None:
        killable.prepare(group)
        servers = killable.bootstrap_servers

        def copied() -> int:
            return client.committed_offset(servers, group, SOURCE) or 0

        def copy_until_it_fails(number: int) -> int:
            producer = client.producer(servers, transactional_id)
            try:
                producer.init()
                start = copied()
                while start < RECORDS:
                    number += 1
                    producer.begin()
                    for value in range(start, start + SIZE):
                        producer.send(TARGET, b"%d" % value)
                    producer.send_offsets(group, SOURCE, start + SIZE)
                    if number % 3:
                        producer.commit()
                        start += SIZE
                    else:
                        producer.abort()
            finally:
                producer.close()
            return number

        def copy() -> None:
            number = 0
            while True:
                try:
                    if copied() >= RECORDS:
                        return
                    number = copy_until_it_fails(number)
                except Exception:  # the group's offset tells the fate of the transaction
                    number += 1

        killable.kill_while(in_background(copy))
        killable.check(group)
