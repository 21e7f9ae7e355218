"""`NodeCall`: a request as the file of its API receives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.messages.call import Call

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster
    from dualwrite.broker_emulator.cluster.node import Node


@dataclass(slots=True)
class NodeCall(Call):
    """A call with the whole node and cluster, beyond the parts that `Call` needs of them."""

    node: Node
    cluster: Cluster
