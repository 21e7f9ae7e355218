"""Whether the emulator serves: for probes of containers, and for whoever waits for it to start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from dualwrite.broker_emulator.config import Profile
from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The emulator serves: who can ask here at all can use its brokers."""

    status: Literal["serving"]
    bootstrap_servers: Annotated[str, "Of the first listener."]
    cluster_id: str
    profile: Profile
    living_nodes: Annotated[tuple[int, ...], "Fewer than all where a test has crashed or stopped some."]


def view(controlled: Controlled) -> Health:
    """That it serves, and where."""
    cluster = controlled.cluster
    return Health(
        status="serving",
        bootstrap_servers=controlled.bootstrap_servers,
        cluster_id=cluster.cluster_id,
        profile=cluster.config.profile,
        living_nodes=tuple(node.node_id for node in cluster.living_nodes),
    )


async def show(controlled: Controlled) -> Health:
    return view(controlled)


ENDPOINTS = (Endpoint("GET", "/v1/health", show, "Whether the emulator serves"),)
