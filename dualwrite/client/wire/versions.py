"""The versions of each API: those that this client supports, and the one that carries a request to a broker."""

from __future__ import annotations

from functools import cache
from typing import Final

from dualwrite.client import messages as m
from dualwrite.errors import Api

NEWEST_TRANSACTION_VERSION: Final = 2
"""Partitions join by Produce, and each end raises the epoch (KIP-890)."""

API_VERSIONS_REQUEST_VERSION: Final = 3
"""The first version with finalised features (KIP-584). An older broker responds with error 35; 0 is sent next."""

# The least and greatest version of each API that this client supports.
SPOKEN_VERSIONS: Final[dict[Api, tuple[int, int]]] = {
    Api.PRODUCE: (3, 12),
    Api.METADATA: (5, 12),
    Api.FIND_COORDINATOR: (1, 4),
    Api.API_VERSIONS: (0, 3),
    Api.INIT_PRODUCER_ID: (0, 6),
    # from version 4 on, only brokers send it
    Api.ADD_PARTITIONS_TO_TXN: (0, 3),
    Api.ADD_OFFSETS_TO_TXN: (0, 4),
    Api.END_TXN: (0, 5),
    # the first version with the group's generation and member (KIP-447)
    Api.TXN_OFFSET_COMMIT: (3, 5),
    Api.DESCRIBE_TRANSACTIONS: (0, 0),
    Api.DESCRIBE_PRODUCERS: (0, 0),
    Api.SASL_HANDSHAKE: (1, 1),
    Api.SASL_AUTHENTICATE: (1, 2),
}

# The first version of each API for transaction.version 2; lower versions are for 0 and 1.
_FIRST_OF_TRANSACTION_V2: Final[dict[Api, int]] = {
    # adds the partition to the transaction by itself (KIP-890)
    Api.PRODUCE: 12,
    Api.TXN_OFFSET_COMMIT: 5,
    Api.END_TXN: 5,
}

EXPECTED_PAIR_INIT_VERSION: Final = 3
"""The first InitProducerId with the expected producer id and epoch (KIP-360)."""

TWO_PHASE_INIT_VERSION: Final = 6
"""InitProducerId with Enable2Pc and KeepPreparedTxn (KIP-939); brokers do not announce it until it is stable."""


def versions_wanted(request: m.Request) -> tuple[int, int]:
    """Return the versions that can carry `request`. InitProducerId v6 is used only if its fields are needed."""
    if isinstance(request, m.InitProducerId):
        if request.enable_2pc or request.keep_prepared_txn:
            return TWO_PHASE_INIT_VERSION, TWO_PHASE_INIT_VERSION
        least = SPOKEN_VERSIONS[Api.INIT_PRODUCER_ID][0] if request.producer_id == -1 else EXPECTED_PAIR_INIT_VERSION
        return least, TWO_PHASE_INIT_VERSION - 1
    if isinstance(request, m.EndTxn | m.TxnOffsetCommit):
        return versions_in_transaction(m.API_OF[type(request)], request.transaction_version)
    return SPOKEN_VERSIONS[m.API_OF[type(request)]]


@cache
def versions_in_transaction(api: Api, transaction_version: int) -> tuple[int, int]:
    """Return the versions of `api` for a transaction.version; mixing them would mix two protocols (KIP-890)."""
    least, greatest = SPOKEN_VERSIONS[api]
    first = _FIRST_OF_TRANSACTION_V2[api]
    return (first, greatest) if transaction_version >= NEWEST_TRANSACTION_VERSION else (least, first - 1)


@cache
def common_version(wanted: tuple[int, int], offered: tuple[int, int] | None) -> int | None:
    """Return the greatest version in both ranges, or None."""
    if offered is None:
        return None
    version = min(wanted[1], offered[1])
    return version if version >= max(wanted[0], offered[0]) else None
