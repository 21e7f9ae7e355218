"""The table of error codes, against the protocol's description of each class."""

from __future__ import annotations

import pickle

import pytest

from dualwrite.client.records.delivery import DeliveryResult, delivery_result
from dualwrite.errors import (
    ERROR_CLASSES,
    Api,
    ErrorClass,
    FencedCommitOutcomeUnknown,
    FencedError,
    KafkaError,
    OutcomeUnknown,
    error_class,
    exception_for,
)

E = ErrorClass
CLIENT_APIS = [Api.INIT_PRODUCER_ID, Api.END_TXN, Api.TXN_OFFSET_COMMIT]


@pytest.mark.parametrize("api", CLIENT_APIS)
def test_coordinator_apis_agree(api: Api) -> None:
    for code, expected in [(14, E.RETRIABLE), (51, E.RETRIABLE), (15, E.RETRIABLE_AFTER_LOOKUP)]:
        assert error_class(api, code) is expected
    assert error_class(api, 16) is E.RETRIABLE_AFTER_LOOKUP
    assert error_class(api, 13) is E.RETRIABLE_AFTER_LOOKUP
    assert error_class(api, 90) is E.FENCED
    assert error_class(api, 47) is E.FENCED
    assert error_class(api, 35) is E.UNSUPPORTED
    assert error_class(api, 49) is E.FATAL


def test_what_is_unknown_is_not_guessed_at() -> None:
    """Fatal, but aborting the transaction resolves a batch, and calls wait for metadata or read."""
    otherwise = {Api.PRODUCE: E.ABORTABLE, Api.METADATA: E.RETRIABLE, Api.FETCH: E.RETRIABLE}
    for api in Api:
        assert error_class(api, 9999) is otherwise.get(api, E.FATAL)
        assert error_class(api, -1) is otherwise.get(api, E.FATAL)


def test_zero_is_no_error_and_is_in_no_row() -> None:
    assert all(code != 0 for _, code in ERROR_CLASSES)


def test_47_is_abortable_on_produce_only() -> None:
    assert error_class(Api.PRODUCE, 47) is E.ABORTABLE


def test_every_class_has_an_exception_that_carries_the_code() -> None:
    for (api, code), _ in ERROR_CLASSES.items():
        error = exception_for(api, code, "sentence")
        assert isinstance(error, KafkaError)
        assert (error.error_code, str(error)) == (code, "sentence")


@pytest.mark.parametrize(
    ("code", "unresolved_before", "expected"),
    [
        (0, False, DeliveryResult.DELIVERED),
        (46, False, DeliveryResult.DELIVERED),
        (45, True, DeliveryResult.SEND_AGAIN),
        (45, False, DeliveryResult.LOST),
        (51, False, DeliveryResult.SEND_AGAIN),
        (19, False, DeliveryResult.SEND_AGAIN),
        (6, False, DeliveryResult.SEND_AGAIN_AFTER_LOOKUP),
        (13, False, DeliveryResult.SEND_AGAIN_AFTER_LOOKUP),
        (10, False, DeliveryResult.LOST),
        (90, False, DeliveryResult.FATAL),
        (49, False, DeliveryResult.FATAL),
        (9999, False, DeliveryResult.LOST),
    ],
)
def test_the_outcome_of_a_batch(code: int, unresolved_before: bool, expected: DeliveryResult) -> None:
    assert delivery_result(code, record_count=1, unresolved_before=unresolved_before) is expected


def test_an_error_goes_to_another_process_with_all_it_knows() -> None:
    unknown = OutcomeUnknown("sentence", transactional_id="t", prepared_state="42:7")
    fenced = FencedCommitOutcomeUnknown("sentence", transactional_id="t", prepared_state="", error_code=90)
    for error in (KafkaError("sentence", error_code=5), unknown, fenced):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), vars(copy)) == ("sentence", vars(error))
    assert isinstance(fenced, FencedError)
    assert isinstance(fenced, OutcomeUnknown)
    assert str(fenced.reworded("again")) == "again"
    assert vars(fenced.reworded("again")) == vars(fenced)
