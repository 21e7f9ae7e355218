"""`NodeCall`: a request as the file of its API receives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.messages.call import Call

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster
    from dualwrite.broker_emulator.cluster.node import Node

_PRODUCER_FENCED: Final = ErrorCode.producer_fenced


@dataclass(slots=True)
class NodeCall(Call):
    """A call with the whole node and cluster, beyond the parts that `Call` needs of them."""

    node: Node
    cluster: Cluster

    def fenced_since(self, version: int, error: ErrorCode) -> ErrorCode:
        """Return `error`, with 90 PRODUCER_FENCED turned into 47 INVALID_PRODUCER_EPOCH for requests below `version`.

        Clients from before KIP-588 do not know 90, nor do all brokers.
        """
        is_known = self.version >= version and self.cluster.config.behaviours.knows_producer_fenced
        return ErrorCode.invalid_producer_epoch if error is _PRODUCER_FENCED and not is_known else error
