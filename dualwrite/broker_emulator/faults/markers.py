"""Faults on the markers that coordinators send to partition leaders inside the process."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2 import request as write_txn_markers

from dualwrite.broker_emulator.api.call import Call
from dualwrite.broker_emulator.api.registry import APIS, schema
from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.faults.service import serve_with_faults
from dualwrite.broker_emulator.transactions.ports import Marker

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import ClusterNode

_KEY, _VERSION = 27, 2
_new: Any = write_txn_markers  # kio's types require its own number types, which are plain numbers at run time


async def send_marker_with_faults(leader: ClusterNode, topic_partition: TopicPartition, marker: Marker) -> ErrorCode:
    """Send one marker to `leader` as a WriteTxnMarkers request, with the faults in place, and return its error code."""
    api, message = APIS[_KEY], schema(_KEY, _VERSION)
    topic = _new.WritableTxnMarkerTopic(name=topic_partition.topic, partition_indexes=(topic_partition.partition,))
    requested = _new.WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.commit,
        topics=(topic,),
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
    link = _MarkerLink()
    request = _new.WriteTxnMarkersRequest(markers=(requested,))
    call = Call(api, _VERSION, request, message.new, leader, leader.cluster, None)
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
