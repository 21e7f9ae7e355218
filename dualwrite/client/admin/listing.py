"""Every transactional id of a cluster: each broker is asked for those that it coordinates (KIP-664).

Ids move between brokers while they are asked. So it is looked whether coordinators moved meanwhile, by the leaders of
`__transaction_state`, and if so what was listed before is listed again. Moves are hidden from who may not see that
topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from dualwrite.client.admin import codec
from dualwrite.client.admin.codec import PATTERN_VERSION, ClusterMetadata, Listed
from dualwrite.client.admin.driver import RETRIABLE, AdminDriver, failure
from dualwrite.client.admin.results import TransactionListing
from dualwrite.client.admin.transport import NoAnswerError
from dualwrite.client.error_texts import error_name
from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import (
    AdminError,
    Api,
    IncompleteAnswerError,
    InvalidPatternError,
    KafkaError,
    KafkaTimeoutError,
    RetriableError,
    UnsupportedByBrokerError,
    error_class,
)

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"

_INVALID_REGULAR_EXPRESSION: Final = 128
_UNKNOWN_TOPIC: Final = 3


class IdFilter(NamedTuple):
    """Which transactional ids: by a pattern, and by what says the same here (None: nothing does)."""

    pattern: str
    matches: Callable[[str], bool] | None


class Filters(NamedTuple):
    """What is listed; empty and None: everything. All of them have to hold."""

    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()
    running_longer_than_ms: int | None = None
    ids: IdFilter | None = None


_Listings = tuple[TransactionListing, ...]
_Key = int | TopicPartition | str
"""What a failure is about: a broker, a partition of the coordinators' topic, or that topic."""


async def list_transactions(driver: AdminDriver, filters: Filters, deadline_s: float) -> _Listings:
    """Ordered by transactional id.

    Raises `IncompleteAnswerError` (whose partial answer is of this type), `UnsupportedByBrokerError`,
    `InvalidPatternError`, `KafkaTimeoutError`.
    """
    answers: dict[int, _Listings] = {}
    failures: dict[_Key, KafkaError] = {}
    backoff = driver.new_backoff()
    metadata = await driver.metadata([TRANSACTION_STATE_TOPIC], deadline_s)
    while True:
        before = metadata
        missing = [broker.broker_id for broker in before.cluster.brokers if broker.broker_id not in answers]
        results = await asyncio.gather(*(_ask(driver, broker_id, filters, deadline_s) for broker_id in missing))
        earlier, failures = failures, {}
        for broker_id, result in zip(missing, results, strict=True):
            if isinstance(result, NoAnswerError):
                failures[broker_id] = _newest(result, earlier.get(broker_id))
            elif isinstance(result, KafkaError):
                failures[broker_id] = result
            else:
                answers[broker_id] = result
        try:
            metadata = await driver.metadata([TRANSACTION_STATE_TOPIC], deadline_s)
        except KafkaTimeoutError as error:  # nobody says whether coordinators moved meanwhile
            if not failures:
                failures[TRANSACTION_STATE_TOPIC] = error
        moved = _moved(before, metadata)
        if moved:
            answers.clear()
        failures |= moved | _without_coordinator(metadata)
        if not failures:
            return _merged(answers)
        may_pass = any(isinstance(error, RetriableError) for error in failures.values())
        if not may_pass or not await driver.pause(backoff, deadline_s):
            raise _incomplete(answers, failures)


def _newest(error: NoAnswerError, earlier: KafkaError | None) -> KafkaError:
    return earlier if error.out_of_time and earlier is not None else RetriableError(str(error))


async def _ask(
    driver: AdminDriver, broker_id: int, filters: Filters, deadline_s: float
) -> _Listings | KafkaError | NoAnswerError:
    try:
        return await _ask_once(driver, broker_id, filters, deadline_s)
    except NoAnswerError as error:
        return error
    except AdminError as error:
        if isinstance(error, InvalidPatternError):
            raise
        return error


async def _ask_once(driver: AdminDriver, broker_id: int, filters: Filters, deadline_s: float) -> _Listings | KafkaError:
    ids = filters.ids
    here = None
    if (
        ids is not None
        and await driver.greatest_version(broker_id, Api.LIST_TRANSACTIONS, deadline_s) < PATTERN_VERSION
    ):
        here = ids.matches
        if here is None:
            raise UnsupportedByBrokerError(
                f"broker {broker_id} cannot filter by a pattern of transactional ids (KIP-1152), and {ids.pattern!r} "
                "is not one that is certain to mean the same here: list without it, and filter by yourself"
            )
    call = codec.list_transactions(
        broker_id,
        states=filters.states,
        producer_ids=filters.producer_ids,
        running_longer_than_ms=filters.running_longer_than_ms,
        pattern=ids.pattern if ids is not None and here is None else None,
    )
    reply = await driver.ask_one(broker_id, call, deadline_s)
    if reply.error_code or reply.value is None:
        return _refused(broker_id, reply.error_code, filters)
    _check_states(broker_id, reply.value)
    return tuple(row for row in reply.value.transactions if here is None or here(row.transactional_id))


def _refused(broker_id: int, error_code: int, filters: Filters) -> KafkaError:
    if error_code == _INVALID_REGULAR_EXPRESSION and filters.ids is not None:
        raise InvalidPatternError(
            f"{filters.ids.pattern!r} is no regular expression for Kafka (RE2/J); nothing was listed",
            error_code=error_code,
        )
    if error_class(Api.LIST_TRANSACTIONS, error_code) in RETRIABLE:
        return RetriableError(
            f"broker {broker_id} answered ListTransactions with {error_name(error_code)}", error_code=error_code
        )
    return failure(Api.LIST_TRANSACTIONS, error_code, f"broker {broker_id}")


def _check_states(broker_id: int, listed: Listed) -> None:
    if listed.unknown_states:
        raise UnsupportedByBrokerError(
            f"broker {broker_id} knows no transaction state {', '.join(listed.unknown_states)}; it listed nothing"
        )


def _coordinators(metadata: ClusterMetadata) -> Mapping[int, tuple[int, int]] | None:
    """(node, leader epoch) by partition, None where that is not shown."""
    topic = metadata.topics.get(TRANSACTION_STATE_TOPIC)
    if topic is None or topic.error_code not in (0, _UNKNOWN_TOPIC):
        return None
    return topic.leaders


def _moved(before: ClusterMetadata, after: ClusterMetadata) -> dict[_Key, KafkaError]:
    """The coordinators that are not those that were asked."""
    old, new = _coordinators(before), _coordinators(after)
    if old is None or new is None:
        return {}
    return {
        TopicPartition(TRANSACTION_STATE_TOPIC, partition): RetriableError(
            f"the coordinator of {TRANSACTION_STATE_TOPIC}-{partition} moved while it was asked"
        )
        for partition in old.keys() | new.keys()
        if old.get(partition) != new.get(partition)
    }


def _without_coordinator(metadata: ClusterMetadata) -> dict[_Key, KafkaError]:
    return {
        TopicPartition(TRANSACTION_STATE_TOPIC, partition): RetriableError(
            f"nobody coordinates the ids of {TRANSACTION_STATE_TOPIC}-{partition}: its leader is down"
        )
        for partition, (node_id, _) in (_coordinators(metadata) or {}).items()
        if node_id == -1
    }


def _merged(answers: Mapping[int, _Listings]) -> _Listings:
    rows = {row.transactional_id: row for listings in answers.values() for row in listings}
    return tuple(rows[transactional_id] for transactional_id in sorted(rows))


def _incomplete(answers: Mapping[int, _Listings], failures: Mapping[_Key, KafkaError]) -> IncompleteAnswerError:
    reasons = "; ".join(str(error) for error in failures.values())
    return IncompleteAnswerError(
        f"not every transactional id was listed: {reasons}", partial=_merged(answers), failures=failures
    )
