"""One request of every API of share groups (KIP-932), as those in `access_requests.py`.

A group is named after the user who asks. Where a request needs members, records in flight or state, a super user
makes them.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import Any, Final

from kafka.protocol.api_message import ApiMessage

from tests.emulator.api.raw_client import milliseconds
from tests.interop.raw_wire.access_requests import (
    KioRequest,
    Scene,
    ask,
    requests_of,
)
from tests.interop.wire import GROUP, message, wait_until

_ACCEPT: Final = 1
_GROUP_RESOURCE: Final = 32
_MAX_WAIT_MS: Final = 30_000
_NO_TOPIC_ID: Final = uuid.UUID(int=7)
_SHARE_KEY_TYPE: Final = 2


def _group(scene: Scene) -> str:
    return f"share-{scene.who}"


def _request(api: str, version: int, **fields: Any) -> KioRequest:
    return KioRequest(api, version, fields)


# -- members


def _heartbeat(scene: Scene, member_id: str, epoch: int) -> KioRequest:
    subscription = ("known",) if epoch == 0 else None
    names = {"group_id": _group(scene), "member_id": member_id, "member_epoch": epoch, "rack_id": None}
    return _request("share_group_heartbeat", 1, **names, subscribed_topic_names=subscription)


def _reads_from_the_beginning(scene: Scene) -> ApiMessage:
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": _GROUP_RESOURCE, "resource_name": _group(scene), "configs": [config]}
    return message("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)


def _join(scene: Scene) -> str:
    """Let a super user join, and return the id of the member when it has partitions."""
    scene.admin.wait_for_coordinator(_group(scene), GROUP)
    ask(scene.admin, _reads_from_the_beginning(scene))
    member_id, epoch = str(uuid.uuid4()), 0

    def has_partitions() -> bool:
        nonlocal epoch
        answer = ask(scene.admin, _heartbeat(scene, member_id, epoch))
        assert answer["error_code"] == 0, answer
        epoch = answer["member_epoch"]
        return bool(answer["assignment"] and answer["assignment"]["topic_partitions"])

    wait_until(has_partitions)
    return member_id


def share_group_heartbeat(scene: Scene) -> KioRequest:
    return _heartbeat(scene, str(uuid.uuid4()), 0)


def share_group_describe(scene: Scene) -> KioRequest:
    _join(scene)
    return _request("share_group_describe", 1, group_ids=(_group(scene),), include_authorized_operations=True)


# -- records


def _fetch(scene: Scene, member_id: str, epoch: int, topic_id: uuid.UUID) -> KioRequest:
    partition = {"partition_index": 0, "acknowledgement_batches": ()}
    topics = ({"topic_id": topic_id, "partitions": (partition,)},)
    limits = {"min_bytes": 1, "max_bytes": 1 << 20, "max_records": 1, "batch_size": 1, "share_acquire_mode": 1}
    session = {"share_session_epoch": epoch, "forgotten_topics_data": (), "is_renew_ack": False}
    names = {"group_id": _group(scene), "member_id": member_id, "max_wait": milliseconds(_MAX_WAIT_MS)}
    return _request("share_fetch", 2, **names, **limits, **session, topics=topics)


def share_fetch(scene: Scene) -> KioRequest:
    return _fetch(scene, _join(scene), 0, scene.known_id)


def share_fetch_of_unknown_id(scene: Scene) -> KioRequest:
    return _fetch(scene, _join(scene), 0, _NO_TOPIC_ID)


def share_acknowledge(scene: Scene) -> KioRequest:
    """The first record is acquired by a super user, and acknowledged in the name of the same member."""
    member_id, epoch = _join(scene), 0

    def has_acquired() -> bool:
        nonlocal epoch
        answer = ask(scene.admin, _fetch(scene, member_id, epoch, scene.known_id))
        assert answer["error_code"] == 0, answer
        epoch += 1
        rows = [row for topic in answer["responses"] for row in topic["partitions"]]
        return any(row["acquired_records"] for row in rows)

    wait_until(has_acquired)
    return _acknowledgement(scene, member_id, epoch, scene.known_id)


def share_acknowledge_of_unknown_id(scene: Scene) -> KioRequest:
    member_id = _join(scene)
    assert ask(scene.admin, _fetch(scene, member_id, 0, scene.known_id))["error_code"] == 0
    return _acknowledgement(scene, member_id, 1, _NO_TOPIC_ID)


def _acknowledgement(scene: Scene, member_id: str, epoch: int, topic_id: uuid.UUID) -> KioRequest:
    batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": (_ACCEPT,)}
    partition = {"partition_index": 0, "acknowledgement_batches": (batch,)}
    topics = ({"topic_id": topic_id, "partitions": (partition,)},)
    names = {"group_id": _group(scene), "member_id": member_id, "share_session_epoch": epoch, "is_renew_ack": False}
    return _request("share_acknowledge", 2, **names, topics=topics)


# -- the state, in requests between brokers


def _of_state(scene: Scene, api: str, version: int, **values: Any) -> KioRequest:
    topics = ({"topic_id": scene.known_id, "partitions": ({"partition": 0, **values},)},)
    return _request(api, version, group_id=_group(scene), topics=topics)


def initialize_share_group_state(scene: Scene) -> KioRequest:
    topic_id = base64.urlsafe_b64encode(scene.known_id.bytes).rstrip(b"=").decode()
    find: dict[str, Any] = {"key_type": _SHARE_KEY_TYPE, "coordinator_keys": (f"{_group(scene)}:{topic_id}:0",)}
    wait_until(lambda: ask(scene.admin, _request("find_coordinator", 6, **find))["coordinators"][0]["error_code"] == 0)
    return _of_state(scene, "initialize_share_group_state", 0, state_epoch=1, start_offset=0)


def _initialized(scene: Scene) -> None:
    """Make the state; a coordinator that has just been found may still be loading."""

    def is_initialized() -> bool:
        answer = ask(scene.admin, initialize_share_group_state(scene))
        return bool(answer["results"][0]["partitions"][0]["error_code"] == 0)

    wait_until(is_initialized)


def read_share_group_state(scene: Scene) -> KioRequest:
    _initialized(scene)
    return _of_state(scene, "read_share_group_state", 0, leader_epoch=0)


def write_share_group_state(scene: Scene) -> KioRequest:
    _initialized(scene)
    epochs = {"state_epoch": 1, "leader_epoch": 0, "start_offset": 0}
    changes: Mapping[str, Any] = {"delivery_complete_count": 0, "state_batches": ()}
    return _of_state(scene, "write_share_group_state", 1, **epochs, **changes)


def delete_share_group_state(scene: Scene) -> KioRequest:
    _initialized(scene)
    return _of_state(scene, "delete_share_group_state", 0)


def read_share_group_state_summary(scene: Scene) -> KioRequest:
    _initialized(scene)
    return _of_state(scene, "read_share_group_state_summary", 1, leader_epoch=0)


# -- offsets


def _begin(scene: Scene) -> KioRequest:
    row = {"partition_index": 0, "start_offset": 0}
    topics = tuple({"topic_name": name, "partitions": (row,)} for name in ("known", "missing"))
    return _request("alter_share_group_offsets", 0, group_id=_group(scene), topics=topics)


def alter_share_group_offsets(scene: Scene) -> KioRequest:
    scene.admin.wait_for_coordinator(_group(scene), GROUP)
    return _begin(scene)


def _altered(scene: Scene) -> None:
    """Make a group without members that has offsets."""

    def is_altered() -> bool:
        answer = ask(scene.admin, alter_share_group_offsets(scene))
        codes = {row["topic_name"]: row["partitions"][0]["error_code"] for row in answer["responses"]}
        return bool(answer["error_code"] == 0 and codes["known"] == 0)

    wait_until(is_altered)


def describe_share_group_offsets(scene: Scene) -> KioRequest:
    _altered(scene)
    topics = tuple({"topic_name": name, "partitions": (0,)} for name in ("known", "missing"))
    return _request("describe_share_group_offsets", 1, groups=({"group_id": _group(scene), "topics": topics},))


def describe_all_share_group_offsets(scene: Scene) -> KioRequest:
    _altered(scene)
    return _request("describe_share_group_offsets", 1, groups=({"group_id": _group(scene), "topics": None},))


def delete_share_group_offsets(scene: Scene) -> KioRequest:
    _altered(scene)
    topics = tuple({"topic_name": name} for name in ("known", "missing"))
    return _request("delete_share_group_offsets", 0, group_id=_group(scene), topics=topics)


SHARE_REQUESTS = requests_of(globals())
