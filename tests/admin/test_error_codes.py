"""Every error that an admin call can get, returned once: passing errors are retried, the others are raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.admin import TopicPartition, TransactionAdmin
from dualwrite.broker_emulator import CloseBefore, Emulator, Error, Fault
from dualwrite.errors import (
    ERROR_CLASSES,
    AdminError,
    Api,
    AuthorizationError,
    ErrorClass,
    IncompleteAnswerError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedByBrokerError,
)
from tests.admin.conftest import PROFILES, settings_of
from tests.admin.site import Site
from tests.producer.impatience import until_said

PARTITION = TopicPartition("orders", 0)
ID = "x"
LIMIT_MS = 2_000  # a busy machine still answers a few requests in it
NETWORK_EXCEPTION = 13  # stands for a missing response; brokers do not send it

CALLS: dict[Api, Callable[[TransactionAdmin], object]] = {
    Api.METADATA: lambda admin: admin.describe_producers([PARTITION]),
    Api.FIND_COORDINATOR: lambda admin: admin.describe_transaction(ID),
    Api.INIT_PRODUCER_ID: lambda admin: admin.force_terminate_transaction(ID),
    Api.WRITE_TXN_MARKERS: lambda admin: admin.abort_transaction(PARTITION, start_offset=0),
    Api.DESCRIBE_PRODUCERS: lambda admin: admin.describe_producers([PARTITION]),
    Api.DESCRIBE_TRANSACTIONS: lambda admin: admin.describe_transaction(ID),
    Api.LIST_TRANSACTIONS: lambda admin: admin.list_transactions(),
}
"""By API, a call that sends its request."""

PASSING = (ErrorClass.RETRIABLE, ErrorClass.RETRIABLE_AFTER_LOOKUP)
ROWS = [row for row in ERROR_CLASSES if row[0] in CALLS and row[1] != NETWORK_EXCEPTION]
UNKNOWN_TO_THE_TABLE = [(api, 9) for api in CALLS if (api, 9) not in ERROR_CLASSES]


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(config=settings_of(PROFILES[0]), topics={"orders": 1}) as running:
        yield running


@pytest.fixture
def admin(emulator: Emulator) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers, retry_backoff_ms=1) as made:
        made.describe_cluster()
        yield made


@pytest.fixture(autouse=True)
def opened(emulator: Emulator) -> Iterator[None]:
    """Open a transaction at offset 0 of a new topic."""
    with Site("emulator", emulator.bootstrap_servers, has_tv2=True) as site:
        identity = site.wire.init_ok(ID)
        start = emulator.log("orders").log_end_offset
        site.write(ID, identity, "orders")
        yield
        emulator.faults.clear()
        site.wire.init_ok(ID)
    assert emulator.log("orders").last_stable_offset > start


def expected_of(error_class: ErrorClass, api: Api) -> type[KafkaError]:
    if api is Api.LIST_TRANSACTIONS:
        return IncompleteAnswerError
    refusals = {ErrorClass.REFUSED: AuthorizationError, ErrorClass.UNSUPPORTED: UnsupportedByBrokerError}
    return refusals.get(error_class, AdminError)


def call(api: Api, emulator: Emulator, admin: TransactionAdmin) -> object:
    if api is Api.WRITE_TXN_MARKERS:
        (row,) = (row for row in emulator.log("orders").producers if row.current_txn_start_offset >= 0)
        admin.abort_transaction(PARTITION, start_offset=row.current_txn_start_offset)
        return None
    return CALLS[api](admin)


@pytest.mark.parametrize(
    ("api", "code"), [*ROWS, *UNKNOWN_TO_THE_TABLE], ids=lambda value: str(getattr(value, "name", value))
)
def test_once(emulator: Emulator, admin: TransactionAdmin, api: Api, code: int) -> None:
    error_class = ERROR_CLASSES.get((api, code), ErrorClass.FATAL)
    undisturbed: Any = None if api in (Api.WRITE_TXN_MARKERS, Api.INIT_PRODUCER_ID) else call(api, emulator, admin)
    fault = emulator.faults.add(Fault(api=api.kafka_name, action=Error(code)))
    is_pair_refused = api is Api.INIT_PRODUCER_ID and error_class is ErrorClass.FENCED  # asked again without a pair
    if is_pair_refused or (error_class in PASSING and (api, code) != (Api.METADATA, 3)):
        assert call(api, emulator, admin) == undisturbed or undisturbed is None
    else:
        with pytest.raises(expected_of(error_class, api), match=rf"\({code}\)|error {code}") as caught:
            call(api, emulator, admin)
        assert not isinstance(caught.value, KafkaTimeoutError)
    assert fault.hits == 1


@pytest.mark.parametrize(
    ("api", "code"),
    [(Api.INIT_PRODUCER_ID, 7), (Api.WRITE_TXN_MARKERS, 19), (Api.LIST_TRANSACTIONS, 7)],
)
def test_for_longer_than_the_call_may_take(emulator: Emulator, admin: TransactionAdmin, api: Api, code: int) -> None:
    fault = emulator.faults.add(Fault(api=api.kafka_name, count=None, action=Error(code)))
    limited: dict[Api, Callable[[], object]] = {
        Api.INIT_PRODUCER_ID: lambda: admin.force_terminate_transaction(ID, timeout_ms=LIMIT_MS),
        Api.WRITE_TXN_MARKERS: lambda: admin.abort_transaction(
            PARTITION, producer_id=4711, producer_epoch=0, coordinator_epoch=0, timeout_ms=LIMIT_MS
        ),
        Api.LIST_TRANSACTIONS: lambda: admin.list_transactions(timeout_ms=LIMIT_MS),
    }
    error = until_said(rf"\({code}\)", KafkaError, limited[api])
    assert isinstance(error, IncompleteAnswerError if api is Api.LIST_TRANSACTIONS else KafkaTimeoutError)
    assert "repeat the same call" in str(error) or api is Api.LIST_TRANSACTIONS
    assert fault.hits > 1


def test_an_answer_is_reported_although_the_last_request_had_none(emulator: Emulator, admin: TransactionAdmin) -> None:
    """The last request times out; the error still contains the broker's earlier response."""
    emulator.faults.add(Fault(api=Api.INIT_PRODUCER_ID.kafka_name, count=1, action=Error(51)))
    emulator.faults.add(Fault(api=Api.INIT_PRODUCER_ID.kafka_name, count=None, action=CloseBefore()))
    with pytest.raises(KafkaTimeoutError, match=r"InitProducerId returned CONCURRENT_TRANSACTIONS \(51\)"):
        admin.force_terminate_transaction(ID, timeout_ms=LIMIT_MS)
