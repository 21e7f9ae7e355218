"""UpdateFeatures (key 57), versions 0-2.

Sets the finalized levels of `transaction.version` and `group.version` while the cluster runs (KIP-584, KIP-778). Every
node accepts it, just as brokers forward it to the controller.

* v0 has AllowDowngrade, which Kafka's controller ignores: v0 only upgrades. v1 has the upgrade type (1 upgrade, 2 safe
  and 3 unsafe downgrade) and ValidateOnly. v2 no longer has a result per feature.
* An unsupported level, a downgrade with the wrong type and an unknown feature are 95. One of them refuses the whole
  request; in kafka-3.9, which has neither feature, each has its own result.
* Level 0 removes the feature from the ApiVersions response. Every update increments the epoch of the finalized
  features.
* Access: ALTER on the cluster (31).
* A failure of the data directory is 56, without any change.
* v2 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.features import (
    GROUP_VERSION,
    SHARE_VERSION,
    TRANSACTION_VERSION,
    UpgradeType,
    finalized_level,
    level_problem,
    supported_levels,
)
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.ALTER, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    updates = call.request.feature_updates
    reasons = await mapped(lambda update: _why_not(call, update), updates)
    refused = next((reason for reason in reasons if reason is not None), None)
    if refused is not None and call.cluster.config.behaviours.features_change_together:
        message = f"The update failed for all features since the following feature had an error: {refused}"
        return _response(call, (), ErrorCode.invalid_update_version, message)
    accepted = {update.feature for update, reason in zip(updates, reasons, strict=True) if reason is None}
    if accepted and not getattr(call.request, "validate_only", False):
        levels = {update.feature: update.max_version_level for update in updates if update.feature in accepted}
        try:
            steps = call.cluster.finalize_features(
                levels.get(TRANSACTION_VERSION), levels.get(GROUP_VERSION), levels.get(SHARE_VERSION)
            )
            async with call.cluster.changes:
                await call.cluster.changes.make(steps)
        except StorageError as problem:
            return _response(call, (), ErrorCode.kafka_storage_error, str(problem))
    return await call.made(_response, call, tuple(zip(updates, reasons, strict=True)), ErrorCode.none, None)


def _why_not(call: NodeCall, update: Any) -> str | None:
    config = call.cluster.config
    supported = supported_levels(update.feature, config)
    reason = level_problem(
        update.max_version_level,
        getattr(update, "upgrade_type", UpgradeType.UPGRADE),
        finalized=finalized_level(update.feature, config),
        supported=supported,
    )
    if reason is None:
        return None
    return f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}"


def _response(
    call: NodeCall, results: tuple[tuple[Any, str | None], ...], error: ErrorCode, message: str | None
) -> Any:
    rows = {}
    if call.version < 2:
        rows["results"] = tuple(
            call.new.UpdatableFeatureResult(
                feature=update.feature,
                error_code=ErrorCode.none if reason is None else ErrorCode.invalid_update_version,
                error_message=reason,
            )
            for update, reason in results
        )
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, error_message=message, **rows)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, (), error, None)
