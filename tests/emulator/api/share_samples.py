"""A request of each API of share groups (KIP-932), and its response in a new cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.emulator.api.raw_client import milliseconds

ANSWERS: Final[Mapping[str, int]] = {
    "share_group_describe": 69,
    "share_fetch": -1,
    "share_acknowledge": 122,
    "read_share_group_state": 42,
    "write_share_group_state": 42,
    "delete_share_group_offsets": 69,
}
"""The errors; all others are 0."""

_OF_STATE: Final = (
    "initialize_share_group_state",
    "read_share_group_state",
    "write_share_group_state",
    "delete_share_group_state",
    "read_share_group_state_summary",
)


def share_sample(api: str, version: int, topic_id: Any) -> dict[str, Any] | None:
    """The fields of a request about partition 0 of the topic "t"; None for another API."""
    if api in _OF_STATE:
        row = {"partition": 0, "state_epoch": 1, "leader_epoch": 0, "start_offset": 0, "state_batches": ()}
        return {"group_id": api, "topics": ({"topic_id": topic_id, "partitions": (row,)},)}
    match api:
        case "share_group_heartbeat":
            member = {"group_id": "sharing", "member_id": "m", "member_epoch": 0, "rack_id": None}
            return {**member, "subscribed_topic_names": ("t",)}
        case "share_group_describe":
            return {"group_ids": ("not sharing",), "include_authorized_operations": True}
        case "share_fetch":
            partition = {"partition_index": 0, "acknowledgement_batches": ()}
            topics = ({"topic_id": topic_id, "partitions": (partition,)},)
            limits = {"min_bytes": 1, "max_bytes": 1000, "max_records": 10, "batch_size": 10, "share_acquire_mode": 0}
            session = {"share_session_epoch": 0, "forgotten_topics_data": (), "is_renew_ack": False}
            names = {"group_id": "not sharing", "member_id": "m", "max_wait": milliseconds(0)}
            return {**names, **limits, **session, "topics": topics}
        case "share_acknowledge":
            names = {"group_id": "not sharing", "member_id": "stranger", "share_session_epoch": 1}
            return {**names, "topics": (), "is_renew_ack": False}
        case "describe_share_group_offsets":
            topic = {"topic_name": "t", "partitions": (0,)}
            group = {"group_id": "not sharing", "topics": (topic,)}
            return {"groups": (group,)}
        case "alter_share_group_offsets":
            row = {"partition_index": 0, "start_offset": 0}
            topics = ({"topic_name": "t", "partitions": (row,)},)
            return {"group_id": "altered", "topics": topics}
        case "delete_share_group_offsets":
            topics = ({"topic_name": "t"},)
            return {"group_id": "not sharing", "topics": topics}
    return None
