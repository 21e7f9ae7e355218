"""List all transactional ids of a cluster: each broker lists those that it coordinates (KIP-664).

Ids may move between brokers during a listing. So the leaders of `__transaction_state` are compared before and after it,
and if a coordinator moved, everything is listed again. A client without DESCRIBE on that topic cannot detect moves.

Brokers below ListTransactions v2 cannot filter by a pattern (KIP-1152), so `matcher` does it here. Brokers match with
RE2/J, while Python's engine understands some patterns differently and takes exponential time for others. So `matcher`
accepts only patterns that mean the same to both and are fast; the rest is refused, never guessed at.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from dualwrite.client.admin import codec
from dualwrite.client.admin.cluster_codec import ClusterMetadata
from dualwrite.client.admin.codec import PATTERN_VERSION, Listed
from dualwrite.client.admin.driver import RETRIABLE, AdminDriver, NoResponseError, failure
from dualwrite.client.admin.results import TransactionListing
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
    """A filter by transactional id: a pattern, and a function that matches the same ids here (None: there is none)."""

    pattern: str
    matches: Callable[[str], bool] | None


class Filters(NamedTuple):
    """Filters of a listing, all of which must match; an empty one or None matches everything."""

    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()
    running_longer_than_ms: int | None = None
    ids: IdFilter | None = None


_Listings = tuple[TransactionListing, ...]
_Key = int | TopicPartition | str
"""The subject of a failure: a broker, a partition of the coordinators' topic, or that topic."""


async def list_transactions(driver: AdminDriver, filters: Filters, deadline_s: float) -> _Listings:
    """List the transactional ids that match, ordered by id.

    Raises `IncompleteAnswerError` (whose `partial` has this type), `UnsupportedByBrokerError`,
    `InvalidPatternError`, `KafkaTimeoutError`.
    """
    responses: dict[int, _Listings] = {}
    failures: dict[_Key, KafkaError] = {}
    backoff = driver.new_backoff()
    metadata = await driver.metadata([TRANSACTION_STATE_TOPIC], deadline_s)
    while True:
        before = metadata
        missing = [broker.broker_id for broker in before.cluster.brokers if broker.broker_id not in responses]
        results = await asyncio.gather(*(_list_broker(driver, broker_id, filters, deadline_s) for broker_id in missing))
        earlier, failures = failures, {}
        for broker_id, result in zip(missing, results, strict=True):
            if isinstance(result, NoResponseError):
                failures[broker_id] = _newest(result, earlier.get(broker_id))
            elif isinstance(result, KafkaError):
                failures[broker_id] = result
            else:
                responses[broker_id] = result
        try:
            metadata = await driver.metadata([TRANSACTION_STATE_TOPIC], deadline_s)
        except KafkaTimeoutError as error:  # it is unknown whether coordinators moved meanwhile
            if not failures:
                failures[TRANSACTION_STATE_TOPIC] = error
        moved = _moved(before, metadata)
        if moved:
            responses.clear()
        failures |= moved | _without_coordinator(metadata)
        if not failures:
            return _merged(responses)
        may_pass = any(isinstance(error, RetriableError) for error in failures.values())
        if not may_pass or not await driver.pause(backoff, deadline_s):
            raise _incomplete(responses, failures)


def _newest(error: NoResponseError, earlier: KafkaError | None) -> KafkaError:
    return earlier if error.out_of_time and earlier is not None else RetriableError(str(error))


async def _list_broker(
    driver: AdminDriver, broker_id: int, filters: Filters, deadline_s: float
) -> _Listings | KafkaError | NoResponseError:
    try:
        return await _list_once(driver, broker_id, filters, deadline_s)
    except NoResponseError as error:
        return error
    except AdminError as error:
        if isinstance(error, InvalidPatternError):
            raise
        return error


async def _list_once(
    driver: AdminDriver, broker_id: int, filters: Filters, deadline_s: float
) -> _Listings | KafkaError:
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
                "may mean something else to this client: list without it, and filter the result yourself"
            )
    call = codec.list_transactions(
        broker_id,
        states=filters.states,
        producer_ids=filters.producer_ids,
        running_longer_than_ms=filters.running_longer_than_ms,
        pattern=ids.pattern if ids is not None and here is None else None,
    )
    reply = await driver.request_once(broker_id, call, deadline_s)
    if reply.error_code or reply.value is None:
        return _refused(broker_id, reply.error_code, filters)
    _check_states(broker_id, reply.value)
    return tuple(row for row in reply.value.transactions if here is None or here(row.transactional_id))


def _refused(broker_id: int, error_code: int, filters: Filters) -> KafkaError:
    if error_code == _INVALID_REGULAR_EXPRESSION and filters.ids is not None:
        raise InvalidPatternError(
            f"{filters.ids.pattern!r} is not a regular expression for Kafka (RE2/J); nothing was listed",
            error_code=error_code,
        )
    if error_class(Api.LIST_TRANSACTIONS, error_code) in RETRIABLE:
        return RetriableError(
            f"broker {broker_id} returned {error_name(error_code)} for ListTransactions", error_code=error_code
        )
    return failure(Api.LIST_TRANSACTIONS, error_code, f"broker {broker_id}")


def _check_states(broker_id: int, listed: Listed) -> None:
    if listed.unknown_states:
        raise UnsupportedByBrokerError(
            f"broker {broker_id} knows no transaction state {', '.join(listed.unknown_states)}; it listed nothing"
        )


def _coordinators(metadata: ClusterMetadata) -> Mapping[int, tuple[int, int]] | None:
    """Return (node, leader epoch) by partition; None if the broker does not show them."""
    topic = metadata.topics.get(TRANSACTION_STATE_TOPIC)
    if topic is None or topic.error_code not in (0, _UNKNOWN_TOPIC):
        return None
    return topic.leaders


def _moved(before: ClusterMetadata, after: ClusterMetadata) -> dict[_Key, KafkaError]:
    """Return an error for each coordinator that changed during the listing."""
    old, new = _coordinators(before), _coordinators(after)
    if old is None or new is None:
        return {}
    return {
        TopicPartition(TRANSACTION_STATE_TOPIC, partition): RetriableError(
            f"the coordinator of {TRANSACTION_STATE_TOPIC}-{partition} moved during the listing"
        )
        for partition in old.keys() | new.keys()
        if old.get(partition) != new.get(partition)
    }


def _without_coordinator(metadata: ClusterMetadata) -> dict[_Key, KafkaError]:
    return {
        TopicPartition(TRANSACTION_STATE_TOPIC, partition): RetriableError(
            f"the ids of {TRANSACTION_STATE_TOPIC}-{partition} have no coordinator: its leader is down"
        )
        for partition, (node_id, _) in (_coordinators(metadata) or {}).items()
        if node_id == -1
    }


def _merged(responses: Mapping[int, _Listings]) -> _Listings:
    rows = {row.transactional_id: row for listings in responses.values() for row in listings}
    return tuple(rows[transactional_id] for transactional_id in sorted(rows))


def _incomplete(responses: Mapping[int, _Listings], failures: Mapping[_Key, KafkaError]) -> IncompleteAnswerError:
    reasons = "; ".join(str(error) for error in failures.values())
    return IncompleteAnswerError(
        f"not every transactional id was listed: {reasons}", partial=_merged(responses), failures=failures
    )


# ---- patterns ---------------------------------------------------------------------------------------------------

# The syntax that both engines read alike: one alternative per kind of token.
_TOKEN: Final = re.compile(
    r"""
    (?P<open>\((?:\?:)?(?!\?))
    | (?P<close>\))
    | (?P<repeat>(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??(?![*+?{]))
    | (?P<either>\|)
    | (?P<one>
        \\[dDwWsS] | \\[^\w\s] | \.                              # classes, escaped punctuation
        | \[\^?(?:\\[dws] | \\[^\w\s] | [^\\\[\]&~|\s])+\]       # a character class without nested classes
        | [^\\()\[\]{}*+?|.^$]                                   # a literal character
    )
    """,
    re.VERBOSE,
)


def matcher(pattern: str) -> Callable[[str], bool] | None:
    """Return a function that says whether a whole transactional id matches, as at a broker; None if not certain."""
    inner = _without_anchors(pattern)
    if not _means_the_same(inner):
        return None
    try:
        compiled = re.compile(inner, re.ASCII)
    except re.error:
        return None
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None


def _without_anchors(pattern: str) -> str:
    """Remove a leading ^ and a trailing $, which are redundant because the whole id has to match."""
    inner = pattern.removeprefix("^")
    ends_in_anchor = re.search(r"(?<!\\)(?:\\\\)*\$$", inner)
    return inner[:-1] if ends_in_anchor else inner


def _means_the_same(pattern: str) -> bool:
    """Return whether the pattern consists of the tokens above, without a repetition inside a repetition."""
    position = 0
    repeats_inside = [False]  # by group depth: whether the group contains a repetition
    last_group_repeats = False
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            return False
        position = token.end()
        if token.lastgroup == "open":
            repeats_inside.append(False)
        elif token.lastgroup == "close":
            if len(repeats_inside) == 1:
                return False
            last_group_repeats = repeats_inside.pop()
            repeats_inside[-1] |= last_group_repeats
            continue
        elif token.lastgroup == "repeat":
            if last_group_repeats:
                return False
            repeats_inside[-1] = True
        last_group_repeats = False
    return len(repeats_inside) == 1


def pattern_of_prefix(prefix: str) -> str:
    """Return an RE2/J pattern for all transactional ids that begin with `prefix`."""
    return re.sub(r"[.*+?()\[\]{}|^$\\]", lambda found: "\\" + found[0], prefix) + r"(?:.|\n)*"
