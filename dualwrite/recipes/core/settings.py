"""The settings of a dual write's producer, checked when the writer is created rather than at its first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from dualwrite.client.records import traces
from dualwrite.client.records.send_arguments import Serializers
from dualwrite.config import ProducerConfig, assert_known
from dualwrite.delivery import Delivery, Direct, Outbox
from dualwrite.errors import ConfigError
from dualwrite.exact import exact
from dualwrite.monkey_patches import assert_unpatched
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH
from dualwrite.shown import shown

if TYPE_CHECKING:
    from dualwrite.client.wire.cluster import ClusterSettings

_ACCEPT: Final = "accept_bounded_guarantee"

_NOT_OF_THE_PRODUCER: Final = ("key_serializer", "value_serializer", "trace_records", "transactional_id")
"""The settings that the writer itself uses: it serializes and traces records, and adds the database's suffix to the id
(`sql/identity_table.py`)."""


DEFAULT_MAX_BUFFERED_BYTES: Final = 33_554_432
"""A producer's default buffer size, so that one flush can take all."""

_DIRECT: Final = Direct()


OF_POOLS: Final = ("max_writers", "acquire_timeout_ms", "lease_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingSettings:
    """The settings of a writer beside its producer's (`dualwrite.settings.WriterPoolSettings`), with their defaults.

    Only a pool has those of `OF_POOLS`.
    """

    lock_timeout_ms: int | None = 60_000
    resolve_timeout_ms: int = 30_000
    max_buffered_bytes: int = DEFAULT_MAX_BUFFERED_BYTES
    pause: PauseHook | None = None
    delivery: Delivery = _DIRECT
    create_table: bool = True
    schema: str | None = None
    max_writers: int = 8
    acquire_timeout_ms: int = 30_000
    lease_ms: int = 15_000

    @classmethod
    def taken_from(cls, settings: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Return these settings, and the others, which are the producer's. Raises ConfigError for an unknown name."""
        names = [field.name for field in fields(cls)]
        assert_known(settings, names)
        own = cls(**{name: value for name, value in settings.items() if name in names})
        return own, {name: value for name, value in settings.items() if name not in names}


def checked_delivery(value: Any) -> Delivery:
    """Return the delivery. Raises ConfigError for any other value."""
    if not isinstance(value, Direct | Outbox):
        raise ConfigError(f"delivery takes Direct(...) or Outbox(...), not {value!r}")
    return value


def check_engine(engine: Any, kind: type, made_by: str) -> None:
    """Raise ConfigError unless `engine` is a `kind`. The message omits the value: a URL may have a password."""
    if not isinstance(engine, kind):
        raise ConfigError(
            f"engine takes SQLAlchemy's {kind.__name__}, made by {made_by}(url), not {type(engine).__name__}"
        )


_UNREACHABLE_TIMEOUT_MS: Final = 500
"""How long no broker may be reachable before a dual write fails: it keeps its database transaction open meanwhile."""


class KafkaSettings:
    """The settings of the producer, and the serializers, which are applied before records are buffered.

    Raises ConfigError for settings that are unknown, malformed, or fixed for dual writes, and as `assert_unpatched`.
    """

    def __init__(self, transactional_id: Any, settings: Mapping[str, Any]) -> None:
        assert_unpatched()  # and not when the first block needs Kafka
        if "transaction_two_phase_commit_enable" in settings:
            raise ConfigError("transaction_two_phase_commit_enable cannot be set here: a dual write always enables it")
        if _ACCEPT in settings or _ACCEPT.replace("_", ".") in settings:
            raise ConfigError(
                f"{_ACCEPT} cannot be set here: the records of a dual write that a broker aborts are published again, "
                "and a block whose records could not be is refused"
            )
        self.transactional_id: Final = checked_transactional_id(transactional_id)
        given = {name.replace(".", "_") for name in settings}
        complete = {
            **({} if "unreachable_timeout_ms" in given else {"unreachable_timeout_ms": _UNREACHABLE_TIMEOUT_MS}),
            **settings,
            "transactional_id": transactional_id,
            "transaction_two_phase_commit_enable": True,
            _ACCEPT: True,
            **({} if "trace_records" in given else {"trace_records": traces.tracer() is not None}),
        }
        config = ProducerConfig.parse(None, complete)
        self.config: Final = config
        self.serializers: Final = Serializers(config.key_serializer, config.value_serializer)
        self.tracer: Final = traces.record_tracer(config)
        self.producer: Final = {
            name: value for name, value in complete.items() if name.replace(".", "_") not in _NOT_OF_THE_PRODUCER
        }

    def cluster(self) -> ClusterSettings:
        from dualwrite.client.wire.cluster import ClusterSettings  # which imports a Kafka client

        return ClusterSettings.of(self.config)


def checked_transactional_id(transactional_id: Any) -> str:
    """Return the transactional id. Raises ConfigError if it does not fit into the state table."""
    if not isinstance(transactional_id, str) or not 0 < len(transactional_id) <= MAX_TRANSACTIONAL_ID_LENGTH:
        raise ConfigError(
            f"transactional_id takes a text of 1 to {MAX_TRANSACTIONAL_ID_LENGTH} characters, not "
            f"{shown(transactional_id)}"
        )
    return exact(transactional_id)
