"""`NodeCall`: a request as the file of its API gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.api.call import Call

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster
    from dualwrite.broker_emulator.cluster.node import Node


@dataclass(slots=True)
class NodeCall(Call):
    """A call whose node and cluster are the whole objects, not only what `Call` needs of them. Adds nothing else."""

    node: Node
    cluster: Cluster
