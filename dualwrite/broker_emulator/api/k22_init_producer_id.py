"""InitProducerId (key 22), versions 0-6.

Gives a producer its id and epoch, and fences the previous owner of the transactional id.

* v2 flexible; v3 adds the expected ProducerId and ProducerEpoch (KIP-360); v4 may return 90; v5 may return 120
  (KIP-890); v6 adds Enable2Pc and KeepPreparedTxn, and returns the id and epoch of the ongoing transaction (KIP-939).
* Below v4, 90 PRODUCER_FENCED is sent as 47 INVALID_PRODUCER_EPOCH.
* Access: WRITE on the transactional id, and TWO_PHASE_COMMIT on it for Enable2Pc (53). Without a transactional id,
  IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (31, KIP-679).
* With every error, all four ids and epochs are -1.
* v6 is unstable in all profiles but kip-939 (`unstable.api.versions.enable` shows it), and not in kafka-3.9.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.error_codes import NO_ERROR, producer_fenced_below
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType

_MILLISECOND = timedelta(milliseconds=1)


async def handle(call: NodeCall) -> Any:
    request = call.request
    denied = _access_error(call)
    if denied is not NO_ERROR:
        return await call.refused(denied)
    result = await call.node.transactions.init_producer_id(
        request.transactional_id,
        request.transaction_timeout // _MILLISECOND,
        producer_id=getattr(request, "producer_id", -1),
        producer_epoch=getattr(request, "producer_epoch", -1),
        enable_2pc=getattr(request, "enable2_pc", False),
        keep_prepared=getattr(request, "keep_prepared_txn", False),
    )
    if result.error is not NO_ERROR:
        return refuse(call, producer_fenced_below(4, call.version, result.error))
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
        ongoing_txn_producer_id=result.ongoing_producer_id,
        ongoing_txn_producer_epoch=result.ongoing_producer_epoch,
    )


def _access_error(call: NodeCall) -> ErrorCode:
    """Return the error of a client that lacks a permission, or NONE."""
    name = call.request.transactional_id
    if name is None:
        is_allowed = call.is_allowed(
            AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, is_logged=False
        ) or call.is_allowed_on_any(AclOperation.WRITE, ResourceType.TOPIC)
        return NO_ERROR if is_allowed else ErrorCode.cluster_authorization_failed
    needed = [AclOperation.WRITE]
    if getattr(call.request, "enable2_pc", False):
        needed.append(AclOperation.TWO_PHASE_COMMIT)
    if all(call.is_allowed(operation, ResourceType.TRANSACTIONAL_ID, name) for operation in needed):
        return NO_ERROR
    return ErrorCode.transactional_id_authorization_failed


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, producer_id=-1, producer_epoch=-1)
