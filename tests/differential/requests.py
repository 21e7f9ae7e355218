"""Steps to requests: symbols are replaced by one broker's choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dualwrite.broker_emulator.log.record_batch import build_batch
from tests.differential.steps import Step
from tests.differential.symbols import NO_PAIR, Pair, Symbols
from tests.emulator.api.raw_client import milliseconds

Fields = dict[str, Any]
_MAX_SEQUENCE: Final = 2**31
_TIMESTAMP_MS: Final = time.time_ns() // 1_000_000
"""The timestamp of all records: old ones would make Kafka roll a segment at the first marker behind them."""
_UNKNOWN_PRODUCER_ID: Final = 10**15 + 7
_SUBSCRIPTION: Final = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
_SUBSCRIPTIONS: Final = {
    "topics": _SUBSCRIPTION,
    "cut": _SUBSCRIPTION[:3],
    "no version": b"\xff\xff" + _SUBSCRIPTION[2:],
}


def fields_of(step: Step, symbols: Symbols) -> Fields:
    """Return the fields of a step's request, for one broker."""
    return _MAKERS[step.api](step, symbols)


def pair_of(values: Mapping[str, Any], symbols: Symbols) -> Pair:
    """Return the producer id and epoch that a step names."""
    known = symbols.pairs.get(values["producer"], NO_PAIR)
    match values["producer"]:
        case "unknown":
            producer_id, epoch = _UNKNOWN_PRODUCER_ID, 0
        case "none":
            producer_id, epoch = -1, -1
        case _:
            producer_id, epoch = known
    if values["epoch"] == "none":
        return Pair(producer_id, -1)
    return Pair(producer_id, epoch + values["epoch"] if producer_id >= 0 else epoch)


def _init(step: Step, symbols: Symbols) -> Fields:
    values = step.values
    match values["expects"]:
        case "nothing":
            expected = NO_PAIR
        case "unknown":
            expected = Pair(_UNKNOWN_PRODUCER_ID, 0)
        case "no epoch":
            expected = Pair(symbols.pairs.get("A", Pair(5, 0)).producer_id, -1)
        case letter:
            known = symbols.pairs.get(letter, NO_PAIR)
            expected = (
                Pair(known.producer_id, max(known.epoch + values["epoch"], -1)) if known.producer_id >= 0 else known
            )
    return {
        "transactional_id": symbols.id(values["id"]),
        "transaction_timeout": milliseconds(values["timeout_ms"]),
        "producer_id": expected.producer_id,
        "producer_epoch": expected.epoch,
        "enable2_pc": False,
        "keep_prepared_txn": False,
    }


def _add_partitions(step: Step, symbols: Symbols) -> Fields:
    pair, transactional_id = pair_of(step.values, symbols), symbols.id(step.values["id"])
    by_topic: dict[str, list[int]] = {}
    for letter, index in step.values["partitions"]:
        by_topic.setdefault(letter, []).append(index)
    topics = tuple(
        {"name": symbols.topic(letter), "partitions": tuple(indexes)} for letter, indexes in by_topic.items()
    )
    if step.version < 4:
        return {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": pair.producer_id,
            "v3_and_below_producer_epoch": pair.epoch,
            "v3_and_below_topics": topics,
        }
    transaction = {**_owned(step, symbols), "verify_only": step.values["verify_only"], "topics": topics}
    return {"transactions": (transaction,)}


def _owned(step: Step, symbols: Symbols) -> Fields:
    pair = pair_of(step.values, symbols)
    return {
        "transactional_id": symbols.id(step.values["id"]),
        "producer_id": pair.producer_id,
        "producer_epoch": pair.epoch,
    }


def _add_offsets(step: Step, symbols: Symbols) -> Fields:
    return {**_owned(step, symbols), "group_id": symbols.group(step.values["group"])}


def _end(step: Step, symbols: Symbols) -> Fields:
    return {**_owned(step, symbols), "committed": step.values["commit"]}


def sequence_of(values: Mapping[str, Any], symbols: Symbols) -> int:
    """Return the base sequence that a Produce step names."""
    upcoming = symbols.sequences.get((pair_of(values, symbols), values["partition"]), 0)
    named = {"next": upcoming, "again": upcoming - values["count"], "gap": upcoming + 1, "none": -1}
    sequence = named.get(values["sequence"], values["sequence"])
    if values["producer"] == "none":
        return -1
    return int(sequence) % _MAX_SEQUENCE if values["sequence"] != "none" else -1


def _produce(step: Step, symbols: Symbols) -> Fields:
    values = step.values
    topic, index = _topic(values, symbols)
    data = {"index": index, "records": _records(values, symbols)}
    return {
        "transactional_id": symbols.id(values["id"]),
        "acks": values["acks"],
        "timeout": milliseconds(5_000),
        "topic_data": ({**topic, "partition_data": (data,)},),
    }


def _records(values: Mapping[str, Any], symbols: Symbols) -> bytes:
    pair = pair_of(values, symbols)
    batch = build_batch(
        [(b"k", b"v%d" % number) for number in range(values["count"])],
        timestamp_ms=_TIMESTAMP_MS,
        producer_id=pair.producer_id,
        producer_epoch=pair.epoch,
        base_sequence=sequence_of(values, symbols),
        transactional=values["transactional"],
        control=values["damage"] == "control",
    )
    match values["damage"]:
        case "crc":
            return batch[:17] + bytes(4) + batch[21:]
        case "trailing":
            return batch + b"\0\0\0"
        case "empty":
            return b""
        case _:
            return batch


def _claims(step: Step, symbols: Symbols) -> Fields:
    values = step.values
    member, generation = symbols.member(values["group"], values["member"])
    if values["generation"] != "none":
        generation += values["generation"]
    else:
        generation = -1
    instance = values["instance"]
    return {
        "group_id": symbols.group(values["group"]),
        "member_id": member,
        "generation_id": generation,
        "generation_id_or_member_epoch": generation,
        "group_instance_id": instance,
    }


def _topic(values: Mapping[str, Any], symbols: Symbols) -> tuple[Fields, int]:
    """Return the fields that name the topic of a step's partition, and the partition's index."""
    letter, index = values["partition"]
    name = symbols.topic(letter)
    return {"name": name, "topic": name, "topic_id": symbols.topic_id(letter)}, index


def _offsets(step: Step, symbols: Symbols) -> Fields:
    values = step.values
    topic, index = _topic(values, symbols)
    partition = {
        "partition_index": index,
        "committed_offset": values["offset"],
        "committed_leader_epoch": -1,
        "committed_metadata": "x" * 5_000 if values.get("metadata") == "long" else values.get("metadata", ""),
    }
    return {"topics": ({**topic, "partitions": (partition,)},)}


def _txn_offset_commit(step: Step, symbols: Symbols) -> Fields:
    return {**_owned(step, symbols), **_claims(step, symbols), **_offsets(step, symbols)}


def _offset_commit(step: Step, symbols: Symbols) -> Fields:
    return {**_claims(step, symbols), **_offsets(step, symbols), "retention_time": milliseconds(-1)}


def _offset_fetch(step: Step, symbols: Symbols) -> Fields:
    values = step.values
    group = symbols.group(values["group"])
    if step.version < 8:
        asked = None if values["partitions"] is None and step.version >= 2 else values["partitions"] or ()
        topics = _fetched_topics(asked, symbols)
        return {"group_id": group, "topics": topics, "require_stable": values["stable"]}
    topics = _fetched_topics(values["partitions"], symbols)
    one = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
    return {"groups": (one,), "require_stable": values["stable"]}


def _fetched_topics(asked: Any, symbols: Symbols) -> Any:
    if asked is None:
        return None
    return tuple(
        {"name": symbols.topic(letter), "topic_id": symbols.topic_id(letter), "partition_indexes": (index,)}
        for letter, index in asked
    )


def _fetch(step: Step, symbols: Symbols) -> Fields:
    values = step.values
    topic, index = _topic(values, symbols)
    partition = {
        "partition": index,
        "fetch_offset": values["offset"],
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": values["leader_epoch"],
    }
    return {
        "replica_id": -1,
        "max_wait": milliseconds(0),
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": values["isolation"],
        "session_id": 0,
        "session_epoch": -1,
        "topics": ({**topic, "partitions": (partition,)},),
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def _one_partition(**renamed: str) -> Callable[[Step, Symbols], Fields]:
    """Return the maker of requests about one partition, whose values keep their names or get others."""

    def make(step: Step, symbols: Symbols) -> Fields:
        topic, index = _topic(step.values, symbols)
        values = {renamed.get(name, name): value for name, value in step.values.items() if name != "partition"}
        partition = {"partition_index": index, "partition": index, **values}
        return {
            "replica_id": -1,
            "isolation_level": values.get("isolation", 0),
            "topics": ({**topic, "partitions": (partition,)},),
            "timeout": milliseconds(5_000),
        }

    return make


def _markers(step: Step, symbols: Symbols) -> Fields:
    pair = pair_of(step.values, symbols)
    marker = {
        "producer_id": pair.producer_id,
        "producer_epoch": pair.epoch,
        "transaction_result": step.values["commit"],
        "coordinator_epoch": step.values["coordinator_epoch"],
        "transaction_version": 0,
    }
    return {"markers": ({**marker, **_describe_producers(step, symbols)},)}


def _describe_producers(step: Step, symbols: Symbols) -> Fields:
    topic, index = _topic(step.values, symbols)
    return {"topics": ({**topic, "partition_indexes": (index,)},)}


def _join(step: Step, symbols: Symbols) -> Fields:
    values = step.values
    member, _ = symbols.member(values["group"], values["member"])
    metadata = _SUBSCRIPTIONS[values.get("metadata", "topics")]
    protocols = tuple({"name": name, "metadata": metadata} for name in values["protocols"])
    return {
        "group_id": symbols.group(values["group"]),
        "session_timeout": milliseconds(values["session_ms"]),
        "rebalance_timeout": milliseconds(30_000),
        "member_id": member,
        "group_instance_id": values["instance"],
        "protocol_type": values["type"],
        "protocols": protocols,
        "reason": None,
    }


def _sync(step: Step, symbols: Symbols) -> Fields:
    claims = _claims(step, symbols)
    assignment = {"member_id": claims["member_id"], "assignment": b"assigned"}
    named = {"protocol_type": step.values["type"], "protocol_name": step.values["protocol"]}
    return {**claims, **named, "assignments": (assignment,)}


def _leave(step: Step, symbols: Symbols) -> Fields:
    claims = _claims(step, symbols)
    if step.version < 3:
        return claims
    named = {"member_id": claims["member_id"], "group_instance_id": claims["group_instance_id"], "reason": None}
    return {**claims, "members": (named,)}


def _describe_groups(step: Step, symbols: Symbols) -> Fields:
    group = symbols.group(step.values["group"])
    return {"groups": (group,), "group_ids": (group,), "include_authorized_operations": False}


def _offset_delete(step: Step, symbols: Symbols) -> Fields:
    topic, index = _topic(step.values, symbols)
    topics = ({**topic, "partitions": ({"partition_index": index},)},)
    return {"group_id": symbols.group(step.values["group"]), "topics": topics}


def _heartbeat_of_consumers(step: Step, symbols: Symbols) -> Fields:
    values = step.values
    epochs = {
        "join": 0,
        "leave": -1,
        "static leave": -2,
        "own": symbols.epochs.get((values["group"], values["member"])),
    }
    epoch = epochs.get(values["epoch"], values["epoch"])
    owned: tuple[Any, ...] | None = None
    if values["owned"] == "nothing" or values["epoch"] == "join":
        owned = ()
    elif values["owned"] == "assigned":
        owned = ({"topic_id": symbols.topic_id("t"), "partitions": (0, 1)},)
    topics = values["topics"]
    return {
        "group_id": symbols.group(values["group"]),
        "member_id": values["member"],
        "member_epoch": 1 if epoch is None else epoch,
        "instance_id": values["instance"],
        "rack_id": None,
        "rebalance_timeout": milliseconds(30_000 if values["epoch"] == "join" else -1),
        "subscribed_topic_names": None if topics is None else tuple(symbols.topic(letter) for letter in topics),
        "subscribed_topic_regex": None,
        "server_assignor": values["assignor"],
        "topic_partitions": owned,
    }


_MAKERS: Final[Mapping[str, Callable[[Step, Symbols], Fields]]] = {
    "init_producer_id": _init,
    "add_partitions_to_txn": _add_partitions,
    "add_offsets_to_txn": _add_offsets,
    "end_txn": _end,
    "produce": _produce,
    "txn_offset_commit": _txn_offset_commit,
    "offset_commit": _offset_commit,
    "offset_fetch": _offset_fetch,
    "fetch": _fetch,
    "list_offsets": _one_partition(leader_epoch="current_leader_epoch"),
    "delete_records": _one_partition(),
    "offset_for_leader_epoch": _one_partition(),
    "write_txn_markers": _markers,
    "describe_transactions": lambda step, symbols: {"transactional_ids": (symbols.id(step.values["id"]),)},
    "describe_producers": _describe_producers,
    "join_group": _join,
    "sync_group": _sync,
    "heartbeat": _claims,
    "leave_group": _leave,
    "describe_groups": _describe_groups,
    "consumer_group_describe": _describe_groups,
    "delete_groups": lambda step, symbols: {"groups_names": (symbols.group(step.values["group"]),)},
    "offset_delete": _offset_delete,
    "consumer_group_heartbeat": _heartbeat_of_consumers,
}
