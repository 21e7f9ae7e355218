"""Markers that coordinators send to partition leaders inside the process, while faults may act on them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import APIS
from dualwrite.broker_emulator.faults.service import serve_with_faults
from dualwrite.broker_emulator.messages.call import Call
from dualwrite.broker_emulator.messages.schema import schema
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions.ports import Marker

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import ClusterNode

_KEY, _VERSION = 27, 2


async def send_marker_with_faults(leader: ClusterNode, topic_partition: TopicPartition, marker: Marker) -> ErrorCode:
    """Send one marker to `leader` as a WriteTxnMarkers request, with the faults in place, and return its error code."""
    await asyncio.sleep(0)  # EndTxn is answered before a fault delays its markers
    # loaded here: slow, and few brokers have such faults
    new: Any = import_module("kio.schema.write_txn_markers.v2.request")
    topic = new.WritableTxnMarkerTopic(name=topic_partition.topic, partition_indexes=(topic_partition.partition,))
    requested = new.WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        topics=(topic,),
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    link = _MarkerLink()
    request = new.WriteTxnMarkersRequest(markers=(requested,))
    call = Call(APIS[_KEY], _VERSION, request, schema(_KEY, _VERSION).new, leader, leader.cluster, None)
    await serve_with_faults(leader.cluster.faults, call, Call.answered, link)
    if link.delayed_response is not None:
        await link.delayed_response
    return link.error


class _MarkerLink:
    """Takes the response. Without a response, the marker has timed out for its sender."""

    def __init__(self) -> None:
        self.error = ErrorCode.request_timed_out
        self.delayed_response: Coroutine[Any, Any, None] | None = None

    def answer(self, response: Any) -> None:
        self.error = response.markers[0].topics[0].partitions[0].error_code

    def abort(self) -> None:
        """Do nothing: there is no connection."""

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def silence(self) -> None:
        """Do nothing: each marker has its own link, so no more requests follow."""

    def overtake(self, answering: Coroutine[Any, Any, None]) -> None:
        self.delayed_response = answering
