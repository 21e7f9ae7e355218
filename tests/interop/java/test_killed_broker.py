"""Kafka's TransactionalMessageCopier, with random aborts, while its broker is killed."""

from __future__ import annotations

from tests.interop.java.client import JavaTools, KafkaScripts
from tests.interop.killed_brokers import RECORDS, SIZE, SOURCE, TARGET, KillableCluster, in_background, killable

__all__ = ["killable"]


def test_copy_while_the_broker_is_killed_is_exactly_once(
    java: JavaTools, killable: KillableCluster, group: str, transactional_id: str
) -> None:
    killable.prepare(group)
    scripts = KafkaScripts(java, killable.bootstrap_servers)
    options = ["--transactional-id", transactional_id, "--input-topic", SOURCE, "--output-topic", TARGET]
    options += ["--input-partition", "0", "--consumer-group", group, "--transaction-size", str(SIZE)]
    options += ["--max-messages", str(RECORDS), "--enable-random-aborts", "--group-mode"]
    copying = in_background(lambda: scripts.ok("transactional-message-copier", *options))
    killable.kill_while(copying)
    killable.check(group)
