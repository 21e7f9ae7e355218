"""What the settings do that do something here, in a sentence each (KIP-569). Kafka's own documentation has the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DOCUMENTATION: Final[Mapping[str, str]] = {
    "add.partitions.to.txn.retry.backoff.max.ms": (
        "How long a leader asks the transaction coordinator again for one Produce request."
    ),
    "add.partitions.to.txn.retry.backoff.ms": (
        "How long a leader waits before it asks the transaction coordinator again."
    ),
    "allow.everyone.if.no.acl.found": "Whether everybody may do everything with what no rule names.",
    "authorizer.class.name": "Turns access control on; the class of Kafka's controllers is the one that is known here.",
    "auto.create.topics.enable": "Whether a topic is created when a client first asks for it.",
    "broker.id": "The id of the first node, where node.id is not set.",
    "cleanup.policy": (
        "What happens to old records: their segments are deleted, or only the newest record of each key is "
        "kept, or both."
    ),
    "connection.failed.authentication.delay.ms": "How long the answer to a login that failed is kept back.",
    "connections.max.idle.ms": "A connection on which nothing was sent for so long is closed.",
    "consumer.heartbeat.interval.ms": "How often members of the group are told to send heartbeats.",
    "consumer.session.timeout.ms": "A member that sent no heartbeat for so long is removed from the group.",
    "controller.quota.window.num": "How many samples the rate of created and deleted partitions is measured over.",
    "controller.quota.window.size.seconds": "How long each of them lasts.",
    "default.replication.factor": "How many copies a topic has that is created without a number; 0: one on every node.",
    "delete.retention.ms": "How long compaction keeps tombstones, and markers of transactions without records.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "fetch.max.bytes": "The most bytes of records in one answer to Fetch, unless a single batch is larger.",
    "group.consumer.assignment.interval.ms": "How long a group waits between two assignments.",
    "group.consumer.assignors": "Which assignors members may ask for; the first one is taken where none does.",
    "group.consumer.heartbeat.interval.ms": "How often members of groups of KIP-848 are told to send heartbeats.",
    "group.consumer.max.size": "How many members a group of KIP-848 can have.",
    "group.consumer.migration.policy": "Which groups may go from the classic protocol to KIP-848, or back.",
    "group.consumer.regex.refresh.interval.ms": (
        "How often subscriptions by regular expression are compared with the topics."
    ),
    "group.consumer.session.timeout.ms": (
        "A member of a group of KIP-848 that sent no heartbeat for so long is removed."
    ),
    "group.initial.rebalance.delay.ms": (
        "How long the first rebalance of an empty classic group waits for further members."
    ),
    "group.max.session.timeout.ms": "The longest session timeout of a member of a classic group.",
    "group.max.size": "How many members a classic group can have.",
    "group.min.session.timeout.ms": "The shortest session timeout of a member of a classic group.",
    "log.cleaner.backoff.ms": "How often logs are looked at that may be worth compacting.",
    "log.cleaner.delete.retention.ms": "delete.retention.ms of topics without their own.",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms of topics without their own.",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio of topics without their own.",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms of topics without their own.",
    "log.cleanup.policy": "cleanup.policy of topics without their own.",
    "log.flush.interval.ms": "How often the disk is made to have what was appended, with fsync=interval.",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms of topics without their own.",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms of topics without their own.",
    "log.message.timestamp.type": "message.timestamp.type of topics without their own.",
    "log.retention.bytes": "retention.bytes of topics without their own.",
    "log.retention.check.interval.ms": "How often logs are looked at that may have segments to delete.",
    "log.retention.hours": (
        "retention.ms of topics without their own, in hours, where neither minutes nor milliseconds are set."
    ),
    "log.retention.minutes": "retention.ms of topics without their own, in minutes, where no milliseconds are set.",
    "log.retention.ms": "retention.ms of topics without their own.",
    "log.roll.hours": "segment.ms of topics without their own, in hours, where no milliseconds are set.",
    "log.roll.ms": "segment.ms of topics without their own.",
    "log.segment.bytes": "segment.bytes of topics without their own.",
    "max.compaction.lag.ms": "Records older than this are compacted, whatever share of the log is new.",
    "max.connections": "How many connections a broker takes at a time.",
    "max.connections.per.ip": "How many connections a broker takes from one address at a time.",
    "max.message.bytes": "The largest record batch.",
    "message.max.bytes": "max.message.bytes of topics without their own.",
    "message.timestamp.after.max.ms": "How far a record's timestamp may be ahead of the broker's clock.",
    "message.timestamp.before.max.ms": "How far a record's timestamp may be behind the broker's clock.",
    "message.timestamp.type": "Whether records keep the producer's timestamps or get the broker's.",
    "min.cleanable.dirty.ratio": "Compaction waits until this share of what it could compact is new.",
    "min.compaction.lag.ms": "Segments with a younger record are not compacted.",
    "min.insync.replicas": "With acks=all, how many copies must be on living nodes for a record to be taken.",
    "node.id": "The id of the first node; further ones count on.",
    "num.partitions": "How many partitions a topic has that is created without a number.",
    "offset.metadata.max.bytes": "The longest note that can be committed with an offset.",
    "offsets.retention.check.interval.ms": "How often committed offsets are looked at that may have expired.",
    "offsets.retention.minutes": (
        "How long offsets are kept of a group that is empty or does not read the topic any more."
    ),
    "offsets.topic.num.partitions": "How many partitions the topic of committed offsets gets when it is created.",
    "offsets.topic.segment.bytes": "segment.bytes of the topic of committed offsets.",
    "process.roles": "Every node is a broker, and one of them the controller.",
    "producer.id.expiration.check.interval.ms": "How often producers are looked at that may be forgotten.",
    "producer.id.expiration.ms": "A partition forgets producers that did not append for so long.",
    "quota.window.num": "How many samples rates of clients are measured over.",
    "quota.window.size.seconds": "How long each of them lasts.",
    "retention.bytes": (
        "The oldest segments of a partition are deleted while the others alone have so many bytes; -1: never."
    ),
    "retention.ms": "Segments whose records are all older are deleted; -1: never.",
    "sasl.server.max.receive.size": "The largest message of a login.",
    "segment.bytes": "A segment of the log that would grow beyond this is complete.",
    "segment.ms": (
        "A segment of the log whose first record is older than this is complete when the next one is appended."
    ),
    "socket.request.max.bytes": "The largest request.",
    "super.users": "Who may do everything, whatever the rules say.",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "How often transactions are looked at whose timeout may be over."
    ),
    "transaction.max.timeout.ms": "The longest timeout that a transaction can have.",
    "transaction.partition.verification.enable": (
        "Whether partition leaders ask the coordinator about transactional writes of older clients."
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        "How often transactional ids are looked at that may have expired."
    ),
    "transaction.state.log.num.partitions": "How many partitions the topic of transactions gets when it is created.",
    "transaction.state.log.segment.bytes": "segment.bytes of the topic of transactions.",
    "transaction.two.phase.commit.enable": (
        "Whether clients may take part in two-phase commit, whose transactions have no timeout."
    ),
    "transactional.id.expiration.ms": "A transactional id that was not used for so long is forgotten.",
    "unstable.api.versions.enable": "Whether API versions are offered that the imitated release does not call stable.",
}


def documentation_of(name: str) -> str | None:
    """What a setting does here, if it does anything."""
    return DOCUMENTATION.get(name)
