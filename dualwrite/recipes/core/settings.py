"""The settings of a dual write's producer, checked when the writer is made and not at its first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from dualwrite.client.records.validation import Serializers
from dualwrite.config import ProducerConfig
from dualwrite.errors import ConfigError
from dualwrite.recipes.core.state_row import MAX_TRANSACTIONAL_ID_LENGTH

_NOT_OF_THE_PRODUCER: Final = ("key_serializer", "value_serializer", "transactional_id")
"""Serializers are asked before, and the id has a suffix that the database knows (`database_identity.py`)."""


Confirm = Literal["kafka", "database"]
"""Whose commit a dual write waits for: Kafka's, or only the database's, which decides."""


def follows_later(confirm: Any) -> bool:
    """Whether Kafka's commit is not waited for. Raises ConfigError."""
    if confirm not in get_args(Confirm):
        raise ConfigError(f"confirm takes 'kafka' or 'database', not {confirm!r}")
    return bool(confirm == "database")


def check_engine(engine: Any, kind: type, made_by: str) -> None:
    """Raises ConfigError where `engine` is none. It is not shown: an URL that is given instead may have a password."""
    if not isinstance(engine, kind):
        raise ConfigError(
            f"engine takes SQLAlchemy's {kind.__name__}, made by {made_by}(url), not {type(engine).__name__}"
        )


class KafkaSettings:
    """What the producer is made with, and the serializers, which are asked before the records are kept.

    Raises ConfigError for settings that are unknown, malformed, or not a choice for dual writes.
    """

    def __init__(self, transactional_id: Any, settings: Mapping[str, Any]) -> None:
        if "transaction_two_phase_commit_enable" in settings:
            raise ConfigError("transaction_two_phase_commit_enable is not a choice here: a dual write needs it")
        self.transactional_id: Final = checked_transactional_id(transactional_id)
        complete = {
            **settings,
            "transactional_id": transactional_id,
            "transaction_two_phase_commit_enable": True,
        }
        config = ProducerConfig.parse(None, complete)
        self.serializers: Final = Serializers(config.key_serializer, config.value_serializer)
        self.producer: Final = {name: value for name, value in complete.items() if name not in _NOT_OF_THE_PRODUCER}


def checked_transactional_id(transactional_id: Any) -> str:
    """One that fits into the state table. Raises ConfigError."""
    if not isinstance(transactional_id, str) or not 0 < len(transactional_id) <= MAX_TRANSACTIONAL_ID_LENGTH:
        raise ConfigError(
            f"transactional_id takes a text of 1 to {MAX_TRANSACTIONAL_ID_LENGTH} characters, not {transactional_id!r}"
        )
    return transactional_id
