"""Everything that can be asked, by the kind of thing that it is about."""

from __future__ import annotations

from dualwrite.broker_emulator.control.endpoints import (
    clock,
    config,
    connections,
    coordinators,
    description,
    faults,
    features,
    groups,
    health,
    holds,
    metrics,
    nodes,
    page,
    partitions,
    quotas,
    replicas,
    state,
    topics,
    transactions,
)

ENDPOINTS = (
    *health.ENDPOINTS,
    *state.ENDPOINTS,
    *faults.ENDPOINTS,
    *holds.ENDPOINTS,
    *clock.ENDPOINTS,
    *nodes.ENDPOINTS,
    *coordinators.ENDPOINTS,
    *connections.ENDPOINTS,
    *topics.ENDPOINTS,
    *partitions.ENDPOINTS,
    *replicas.ENDPOINTS,
    *transactions.ENDPOINTS,
    *groups.ENDPOINTS,
    *features.ENDPOINTS,
    *quotas.ENDPOINTS,
    *config.ENDPOINTS,
    *metrics.ENDPOINTS,
    *description.ENDPOINTS,
    *page.ENDPOINTS,
)
