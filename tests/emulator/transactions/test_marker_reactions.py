from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.transactions.execution import MarkerReaction, reaction_to

KAFKA_REACTIONS = {
    0: MarkerReaction.ACKNOWLEDGED,
    **dict.fromkeys((3, 6, 7, 19, 20, 56), MarkerReaction.RETRY),
    **dict.fromkeys((47, 52), MarkerReaction.CANCEL),
    **dict.fromkeys((43, 35), MarkerReaction.DROPPED),
}


def test_every_response_has_kafkas_reaction_or_is_illegal() -> None:
    for error in ErrorCode:
        if error in KAFKA_REACTIONS:
            assert reaction_to(error) is KAFKA_REACTIONS[error]
        else:
            with pytest.raises(RuntimeError, match=error.name):
                reaction_to(error)
