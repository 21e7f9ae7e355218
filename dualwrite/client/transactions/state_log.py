"""One line for each change of a producer's state, to whoever listens to this module's logger.

Changes that an application brings about are DEBUG, what makes a transaction or a producer unusable is INFO and WARNING:
whoever made the call hears of both as an exception anyway.
"""

from __future__ import annotations

import logging
from typing import Final

from dualwrite.client.transactions.states import Call, Event, ProducerState
from dualwrite.errors import KafkaError

_LEVELS: Final = {ProducerState.ABORTABLE_ERROR: logging.INFO, ProducerState.FATAL_ERROR: logging.WARNING}

_log = logging.getLogger(__name__)


def log_change(
    transactional_id: str,
    before: ProducerState,
    after: ProducerState,
    cause: Call | Event,
    identity: tuple[int, int],
    error: KafkaError | None = None,
) -> None:
    """`identity`: the producer id and epoch."""
    level = _LEVELS.get(after, logging.DEBUG)
    if before is after or not _log.isEnabledFor(level):
        return
    _log.log(
        level,
        "transactional id %s: %s -> %s by %s (producer id %d, epoch %d)%s",
        transactional_id,
        before.name,
        after.name,
        cause.name,
        *identity,
        "" if error is None else f": {error}",
    )
