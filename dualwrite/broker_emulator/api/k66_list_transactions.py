"""ListTransactions (key 66), versions 0-2.

The transactional ids that this node coordinates (KIP-664); clients send it to every node.

* v1 minimum duration (KIP-994), v2 pattern of the id (KIP-1152). Filters are ANDed; unknown states are returned in the
  response; if all states are unknown, no id matches. A pattern that does not compile is 128.
* Access: transactional ids that the client may not DESCRIBE are omitted.
* v2 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import selected
from dualwrite.broker_emulator.transactions.inspection import (
    ListTransactionsResult,
    TransactionListing,
    matching,
)


async def handle(call: NodeCall) -> Any:
    request = call.request
    listed = call.node.transactions.list(
        state_filters=request.state_filters,
        producer_id_filters=request.producer_id_filters,
        duration_filter_ms=getattr(request, "duration_filter", -1),
    )
    found = await matching(listed, getattr(request, "transactional_id_pattern", None))

    def is_shown(row: TransactionListing) -> bool:
        return call.is_allowed(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, row.transactional_id)

    shown = found._replace(transactions=tuple(await selected(is_shown, found.transactions)))
    return await call.made(_response, call, shown)


def _response(call: NodeCall, result: ListTransactionsResult) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=result.error,
        unknown_state_filters=result.unknown_state_filters,
        transaction_states=tuple(
            call.new.TransactionState(
                transactional_id=transactional_id, producer_id=producer_id, transaction_state=state
            )
            for transactional_id, producer_id, state in result.transactions
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, ListTransactionsResult(error))
