"""EndTxn (key 26), versions 0-5.

Commits or aborts the ongoing transaction. The response is sent once the decision is in the log; the markers follow.

* v2 may return 90 (below, it is sent as 47); v3 flexible; v4 may return 120; v5 is TV2 (KIP-890): every transaction
  bumps the epoch, and the response has the producer id and epoch of the next one, or (-1, -1) with an error.
* Access: WRITE on the transactional id (53).
* v5 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.error_codes import NO_ERROR, producer_fenced_below


async def handle(call: NodeCall) -> Any:
    request = call.request
    if not call.may_write_id(request.transactional_id):
        return await call.refused(ErrorCode.transactional_id_authorization_failed)
    result = await call.node.transactions.end_txn(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        commit=request.committed,
        transaction_version=2 if call.version >= 5 else 0,
    )
    if result.error is not NO_ERROR:
        return refuse(call, producer_fenced_below(2, call.version, result.error))
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error)
