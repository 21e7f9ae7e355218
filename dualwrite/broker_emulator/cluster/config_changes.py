"""Alter the settings of a cluster's topics, brokers, groups and client metrics, with immediate effect.

Each function returns the steps of the alteration (`slices.py`). They raise AlterationError if it is refused, and
StorageError if it cannot be stored. `only_check` alters nothing. Without `is_incremental`, settings that the changes do
not name are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.configs.alteration import (
    AlterationError,
    Change,
    ConfigResource,
    after_changes,
    check_broker_configs,
    check_client_metrics_configs,
    check_group_configs,
    check_topic_configs,
)
from dualwrite.broker_emulator.configs.effective import alterable_broker_settings, topic_settings
from dualwrite.broker_emulator.slices import Steps
from dualwrite.broker_emulator.topics.topics import Topic


def alter_topic(
    cluster: Cluster, topic: Topic, changes: Sequence[Change], *, is_incremental: bool = True, only_check: bool = False
) -> Steps[None]:
    """Alter the settings of a topic."""
    settings = topic_settings(cluster.config.behaviours.settings)
    current = {key: value for key, value in topic.configs.items() if value is not None}
    after = after_changes(current if is_incremental else {}, changes, settings)
    yield
    check_topic_configs(after, settings)
    if not only_check:
        yield from cluster.alter_topic(topic, after)


def alter_broker(
    cluster: Cluster, name: str, changes: Sequence[Change], *, is_incremental: bool = True, only_check: bool = False
) -> Steps[None]:
    """Alter the settings of the broker whose id is `name`, or of all of them (ALL_BROKERS)."""
    settings = alterable_broker_settings(cluster.config.behaviours.settings)
    current = cluster.altered_configs.of(ConfigResource.BROKER, name) if is_incremental else {}
    after = after_changes(current, changes, settings, of_broker=True)
    yield
    check_broker_configs(name, after, settings)
    yield
    if not only_check:
        try:
            yield from cluster.alter_brokers(name, after)
        except ValueError as error:
            raise AlterationError(ErrorCode.invalid_request, str(error)) from error


def alter_stored(
    cluster: Cluster,
    resource: ConfigResource,
    name: str,
    changes: Sequence[Change],
    *,
    is_incremental: bool = True,
    only_check: bool = False,
) -> Steps[None]:
    """Alter the settings of a group, which need not exist, or of a client metrics subscription."""
    if not name:
        raise AlterationError(ErrorCode.invalid_request, _NAMELESS[resource])
    current = cluster.altered_configs.of(resource, name) if is_incremental else {}
    after = after_changes(current, changes, {})  # as in Kafka's controller, list operations are impossible here
    yield
    if resource is ConfigResource.GROUP:
        check_group_configs(after, cluster.config)
    else:
        check_client_metrics_configs(after)
    yield
    if only_check:
        return
    if after:
        cluster.altered_configs.replace(resource, name, after)
    else:
        cluster.altered_configs.forget(resource, name)


_NAMELESS: Final = {
    ConfigResource.GROUP: "Default group resources are not allowed.",
    ConfigResource.CLIENT_METRICS: "Subscription name can't be empty",
}
