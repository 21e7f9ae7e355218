"""Every error code in every response to a transactional producer: the outcome of the call, and the producer's state.

The table was written from the protocol, code by code, and is not computed from the code under test.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import pytest

from dualwrite.client import messages as m
from dualwrite.client.kafka_python import kafka_errors
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.delivery import DeliveryResult, delivery_result
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.states import Event, ProducerState
from dualwrite.errors import (
    ERROR_CLASSES,
    AbortableError,
    Api,
    AuthorizationError,
    CommitOutcomeUnknown,
    ErrorClass,
    FatalError,
    FencedCommitOutcomeUnknown,
    FencedError,
    KafkaError,
    OutcomeUnknown,
    RetriableError,
    UnsupportedByBrokerError,
    error_class,
    exception_for,
)
from dualwrite.outcome import Outcome, note_outcome
from dualwrite.recipes.core.dual_write import say_of_block

S = ProducerState
CODES = [*(code for code in range(-1, 134) if code != 0), 9999]
"""All codes that Kafka has, and some future ones."""

# The classes of each API's codes; a code in no set is "otherwise".
RETRY, LOOKUP, ABORT, REFUSED, FENCED, UNSUPPORTED, FATAL = (
    ErrorClass.RETRIABLE,
    ErrorClass.RETRIABLE_AFTER_LOOKUP,
    ErrorClass.ABORTABLE,
    ErrorClass.REFUSED,
    ErrorClass.FENCED,
    ErrorClass.UNSUPPORTED,
    ErrorClass.FATAL,
)
TABLE: dict[Api, dict[ErrorClass, set[int]]] = {
    Api.PRODUCE: {
        RETRY: {2, 7, 14, 15, 16, 19, 20, 51},
        LOOKUP: {3, 5, 6, 13, 56},
        FENCED: {90},
        UNSUPPORTED: {35},
        FATAL: {31, 49, 53},
    },
    Api.FETCH: {LOOKUP: {3, 5, 6, 9, 13, 56, 74}, REFUSED: {29}, UNSUPPORTED: {35, 76}},
    Api.METADATA: {REFUSED: {17, 29}},
    Api.FIND_COORDINATOR: {RETRY: {7, 13, 14, 15, 16}, ABORT: {24, 30, 120}, REFUSED: {53}, UNSUPPORTED: {35}},
    Api.INIT_PRODUCER_ID: {
        RETRY: {7, 14, 51},
        LOOKUP: {13, 15, 16},
        REFUSED: {31, 53},
        FENCED: {47, 90},
        UNSUPPORTED: {35},
    },
    Api.END_TXN: {RETRY: {7, 14, 51}, LOOKUP: {13, 15, 16}, ABORT: {120}, FENCED: {47, 90}, UNSUPPORTED: {35}},
    Api.ADD_PARTITIONS_TO_TXN: {
        RETRY: {3, 7, 14, 51, 55},
        LOOKUP: {13, 15, 16},
        ABORT: {29, 120},
        FENCED: {47, 90},
        UNSUPPORTED: {35},
    },
    Api.ADD_OFFSETS_TO_TXN: {
        RETRY: {7, 14, 51},
        LOOKUP: {13, 15, 16},
        ABORT: {30, 120},
        FENCED: {47, 90},
        UNSUPPORTED: {35},
    },
    Api.TXN_OFFSET_COMMIT: {
        RETRY: {3, 7, 14, 51},
        LOOKUP: {13, 15, 16},
        ABORT: {12, 22, 24, 25, 28, 29, 30, 82, 120},
        FENCED: {47, 90},
        UNSUPPORTED: {35},
    },
    Api.DESCRIBE_CONFIGS: {RETRY: {7}, LOOKUP: {13}, REFUSED: {29, 31}, UNSUPPORTED: {35}},
}
# after these, a description may show how the prepared transaction ended
ENDED_BY_ANOTHER = (47, 48, 49, 90)
OTHERWISE = {Api.PRODUCE: ABORT, Api.METADATA: RETRY, Api.FETCH: RETRY}


def expected_class(api: Api, code: int) -> ErrorClass:
    found = [what for what, codes in TABLE[api].items() if code in codes]
    assert len(found) <= 1
    return found[0] if found else OTHERWISE.get(api, FATAL)


@pytest.mark.parametrize("api", TABLE, ids=lambda api: api.name)
def test_every_code_of_every_answer_has_its_class(api: Api) -> None:
    assert {code: error_class(api, code) for code in CODES} == {code: expected_class(api, code) for code in CODES}


# ---- the outcome of a call ---------------------------------------------------------------------------------------

OFFSETS = {TopicPartition("in", 0): OffsetAndMetadata(5)}
GROUP = ConsumerGroupMetadata("g")
Situation = Callable[[], tuple[TransactionManager, Operation]]


def _manager() -> TransactionManager:
    return TransactionManager(
        transactional_id="tid", transaction_timeout_ms=60_000, two_phase_commit=True, backoff=Backoff(100, 1000)
    )


def _next(manager: TransactionManager, kind: type[m.Request]) -> None:
    outgoing = manager.poll(0, delivered=True)
    assert outgoing is not None
    assert type(outgoing.request) is kind


def _found(manager: TransactionManager) -> None:
    _next(manager, m.FindCoordinator)
    manager.on_response(m.FindCoordinatorResponse(0, 1, "h", 1), 0)


def _asked(manager: TransactionManager, *, describes: bool = False) -> None:
    _found(manager)
    _next(manager, m.ApiVersions)
    manager.on_response(m.BrokerFeatures(0, dict.fromkeys(Api, (0, 12)), 2), 0)
    if describes:
        _next(manager, m.DescribeTransaction)
        manager.on_response(m.DescribeTransactionResponse(0, "Ongoing", 42, 5, 0), 0)
    _next(manager, m.InitProducerId)


def _ready(*, keep: bool = False, ongoing: int = -1) -> TransactionManager:
    manager = _manager()
    operation = manager.init_transactions(keep)
    _asked(manager, describes=keep)
    manager.on_response(m.InitProducerIdResponse(0, 42, 7, ongoing, ongoing), 0)
    manager.acknowledge(operation)
    return manager


def _open() -> TransactionManager:
    manager = _ready()
    manager.begin_transaction()
    manager.accepted()
    manager.produced()
    return manager


def _prepared() -> TransactionManager:
    manager = _open()
    manager.acknowledge(manager.prepare_transaction())
    manager.poll(0, delivered=True)
    manager.acknowledge(manager.prepare_transaction())
    assert manager.state is S.PREPARED_TRANSACTION
    return manager


def finding_for_init() -> tuple[TransactionManager, Operation]:
    manager = _manager()
    operation = manager.init_transactions(False)
    _next(manager, m.FindCoordinator)
    return manager, operation


def initialising() -> tuple[TransactionManager, Operation]:
    manager = _manager()
    operation = manager.init_transactions(False)
    _asked(manager)
    manager.on_response(m.InitProducerIdResponse(35), 0)  # no KeepPreparedTxn here (KAFKA-20739)
    _next(manager, m.InitProducerId)
    return manager, operation


def finding_the_group() -> tuple[TransactionManager, Operation]:
    manager = _open()
    operation = manager.send_offsets(OFFSETS, GROUP)
    _next(manager, m.FindCoordinator)
    return manager, operation


def committing_offsets() -> tuple[TransactionManager, Operation]:
    manager = _open()
    operation = manager.send_offsets(OFFSETS, GROUP)
    _found(manager)
    _next(manager, m.TxnOffsetCommit)
    return manager, operation


def _open_v1() -> TransactionManager:
    """Set up a cluster without KIP-890, with which partitions are added before they are written to."""
    manager = TransactionManager(
        transactional_id="tid", transaction_timeout_ms=60_000, two_phase_commit=False, backoff=Backoff(100, 1000)
    )
    operation = manager.init_transactions(False)
    _found(manager)
    _next(manager, m.ApiVersions)
    versions: Mapping[int, tuple[int, int]] = {**dict.fromkeys(Api, (0, 4)), Api.PRODUCE: (0, 11)}
    manager.on_response(m.BrokerFeatures(0, versions, 0), 0)
    _next(manager, m.InitProducerId)
    manager.on_response(m.InitProducerIdResponse(0, 42, 7), 0)
    manager.acknowledge(operation)
    manager.begin_transaction()
    manager.accepted()
    return manager


def adding_partitions() -> tuple[TransactionManager, Operation]:
    manager = _open_v1()
    operation = manager.send_offsets(OFFSETS, GROUP)
    assert not manager.may_produce_to("t", 0, 0, 0)
    _next(manager, m.AddPartitionsToTxn)
    return manager, operation


def adding_partitions_to_commit() -> tuple[TransactionManager, Operation]:
    manager = _open_v1()
    operation = manager.commit_transaction()
    assert not manager.may_produce_to("t", 0, 0, 0)
    outgoing = manager.poll(0, delivered=False)
    assert outgoing is not None
    assert isinstance(outgoing.request, m.AddPartitionsToTxn)
    return manager, operation


def adding_offsets() -> tuple[TransactionManager, Operation]:
    manager = _open_v1()
    operation = manager.send_offsets(OFFSETS, GROUP)
    _found(manager)
    _next(manager, m.AddOffsetsToTxn)
    return manager, operation


def _ending(manager: TransactionManager, operation: Operation) -> tuple[TransactionManager, Operation]:
    _next(manager, m.EndTxn)
    return manager, operation


def committing() -> tuple[TransactionManager, Operation]:
    manager = _open()
    return _ending(manager, manager.commit_transaction())


def committing_what_was_prepared() -> tuple[TransactionManager, Operation]:
    manager = _prepared()
    return _ending(manager, manager.commit_transaction())


def aborting() -> tuple[TransactionManager, Operation]:
    manager = _open()
    return _ending(manager, manager.abort_transaction())


def aborting_what_was_prepared() -> tuple[TransactionManager, Operation]:
    manager = _prepared()
    return _ending(manager, manager.abort_transaction())


def aborting_after_a_failure() -> tuple[TransactionManager, Operation]:
    manager = _open()
    manager.fail_abortable(AbortableError("a record was lost"))
    return _ending(manager, manager.abort_transaction())


def completing_after_a_recovery() -> tuple[TransactionManager, Operation]:
    manager = _ready(keep=True, ongoing=5)
    return _ending(manager, manager.complete_transaction(manager.transaction.prepared_state))


def finding_again_to_commit() -> tuple[TransactionManager, Operation]:
    manager, operation = committing()
    manager.on_response(m.EndTxnResponse(16), -1000)
    _next(manager, m.FindCoordinator)
    return manager, operation


# The state after an error of each class. None: nothing has changed, and the request is repeated.
# REFUSED, FENCED, UNSUPPORTED and FATAL end a producer unless the table says otherwise.
END = S.FATAL_ERROR
SITUATIONS: list[tuple[Situation, Api, S, dict[ErrorClass, S]]] = [
    (finding_for_init, Api.FIND_COORDINATOR, S.INITIALIZING, {REFUSED: S.UNINITIALIZED, ABORT: END}),
    (initialising, Api.INIT_PRODUCER_ID, S.INITIALIZING, {REFUSED: S.UNINITIALIZED, ABORT: END}),
    (finding_the_group, Api.FIND_COORDINATOR, S.IN_TRANSACTION, {ABORT: S.ABORTABLE_ERROR}),
    (committing_offsets, Api.TXN_OFFSET_COMMIT, S.IN_TRANSACTION, {ABORT: S.ABORTABLE_ERROR}),
    (adding_partitions, Api.ADD_PARTITIONS_TO_TXN, S.IN_TRANSACTION, {ABORT: S.ABORTABLE_ERROR}),
    (adding_partitions_to_commit, Api.ADD_PARTITIONS_TO_TXN, S.COMMITTING_TRANSACTION, {ABORT: S.ABORTABLE_ERROR}),
    (adding_offsets, Api.ADD_OFFSETS_TO_TXN, S.IN_TRANSACTION, {ABORT: S.ABORTABLE_ERROR}),
    (committing, Api.END_TXN, S.COMMITTING_TRANSACTION, {ABORT: S.ABORTABLE_ERROR}),
    # a prepared transaction is not aborted because a broker refuses its commit (KIP-939)
    (committing_what_was_prepared, Api.END_TXN, S.COMMITTING_TRANSACTION, {ABORT: END}),
    (completing_after_a_recovery, Api.END_TXN, S.COMMITTING_TRANSACTION, {ABORT: END}),
    (aborting, Api.END_TXN, S.ABORTING_TRANSACTION, {ABORT: END}),
    (aborting_what_was_prepared, Api.END_TXN, S.ABORTING_TRANSACTION, {ABORT: END}),
    (aborting_after_a_failure, Api.END_TXN, S.ABORTING_TRANSACTION, {ABORT: END}),
    # after 16 the commit may have been applied, so no error may say that it can be aborted
    (finding_again_to_commit, Api.FIND_COORDINATOR, S.COMMITTING_TRANSACTION, {ABORT: END}),
]
EXCEPTIONS: dict[S, dict[ErrorClass, type[KafkaError]]] = {
    S.UNINITIALIZED: {REFUSED: AuthorizationError},
    S.ABORTABLE_ERROR: {ABORT: AbortableError},
    END: {
        ABORT: FatalError,
        REFUSED: FatalError,
        FENCED: FencedError,
        UNSUPPORTED: UnsupportedByBrokerError,
        FATAL: FatalError,
    },
}
TO_DO = {
    S.UNINITIALIZED: "repeat the call",
    S.ABORTABLE_ERROR: "call abort_transaction() and start again",
    END: "close this producer",
}


def answer_of(api: Api, code: int) -> m.Response:
    answers: dict[Api, Callable[[], m.Response]] = {
        Api.FIND_COORDINATOR: lambda: m.FindCoordinatorResponse(code),
        Api.INIT_PRODUCER_ID: lambda: m.InitProducerIdResponse(code),
        Api.END_TXN: lambda: m.EndTxnResponse(code),
        Api.ADD_PARTITIONS_TO_TXN: lambda: m.AddPartitionsToTxnResponse({TopicPartition("t", 0): code}),
        Api.ADD_OFFSETS_TO_TXN: lambda: m.AddOffsetsToTxnResponse(code),
        Api.TXN_OFFSET_COMMIT: lambda: m.TxnOffsetCommitResponse((0, code)),
    }
    return answers[api]()


@pytest.mark.parametrize(
    ("situation", "api", "before", "after"), SITUATIONS, ids=[row[0].__name__ for row in SITUATIONS]
)
def test_every_code_in_every_situation(situation: Situation, api: Api, before: S, after: dict[ErrorClass, S]) -> None:
    for code in CODES:
        manager, operation = situation()
        assert manager.state is before
        what = expected_class(api, code)
        manager.on_response(answer_of(api, code), 0)
        if (
            manager.transaction.prepared_state
            and manager.state is S.COMMITTING_TRANSACTION
            and code in ENDED_BY_ANOTHER
        ):
            _next(manager, m.DescribeTransaction)
            manager.on_response(m.DescribeTransactionResponse(53), 0)  # its outcome cannot be determined
        if what in (RETRY, LOOKUP):
            assert manager.state is before, code
            assert not operation.done
            assert manager.retry_at_ms is not None, "it says when it goes on"
            assert manager.retry_at_ms >= (20 if code == 51 else 100)
            assert manager.poll(19, delivered=True) is None, "no spinning"
            again = manager.poll(manager.retry_at_ms, delivered=True)
            assert again is not None, "it goes on"
            assert isinstance(again.request, m.FindCoordinator) is (what is LOOKUP or api is Api.FIND_COORDINATOR)
            continue
        state = after.get(what, END)
        assert manager.state is state, code
        assert operation.done
        assert operation.error is not None
        if situation is finding_again_to_commit:
            assert isinstance(operation.error, FencedCommitOutcomeUnknown if what is FENCED else CommitOutcomeUnknown)
        else:
            assert isinstance(operation.error, EXCEPTIONS[state][what])
        said = str(operation.error)
        assert "transactional id 'tid'" in said
        assert f"({code})" in said or f"error {code}" in said
        assert before.value in said
        assert TO_DO[state] in said
        assert operation.error.error_code == code
        # the calls that Kafka allows now work, and the others are refused with the same class
        manager.acknowledge(operation)
        if state is S.UNINITIALIZED:
            assert not manager.init_transactions(False).done
        elif state is S.ABORTABLE_ERROR:
            manager.abort_transaction()
            _next(manager, m.EndTxn)
            manager.on_response(m.EndTxnResponse(0, 42, 8), 0)
            assert manager.state is S.READY
        else:
            assert manager.operation_before_close() is None
            assert manager.poll(10_000, delivered=True) is None
            with pytest.raises(type(operation.error), match="'tid' is failed for good; close this producer"):
                manager.abort_transaction()


# ---- the outcome of a batch --------------------------------------------------------------------------------------

VERDICTS = {
    RETRY: DeliveryResult.SEND_AGAIN,
    LOOKUP: DeliveryResult.SEND_AGAIN_AFTER_LOOKUP,
    ABORT: DeliveryResult.LOST,
    FENCED: DeliveryResult.FATAL,
    UNSUPPORTED: DeliveryResult.FATAL,
    FATAL: DeliveryResult.FATAL,
}


@pytest.mark.parametrize("unresolved_before", [False, True])
def test_every_code_of_a_batch(unresolved_before: bool) -> None:
    expected = {code: VERDICTS[expected_class(Api.PRODUCE, code)] for code in CODES}
    expected[46] = DeliveryResult.DELIVERED  # a duplicate is stored
    expected[45] = DeliveryResult.SEND_AGAIN if unresolved_before else DeliveryResult.LOST
    assert {
        code: delivery_result(code, record_count=1, unresolved_before=unresolved_before) for code in CODES
    } == expected


@pytest.mark.parametrize(
    ("manager", "after"),
    [
        (_open, S.ABORTABLE_ERROR),
        (lambda: committing_with_a_batch_on_its_way()[0], S.ABORTABLE_ERROR),
        (lambda: aborting()[0], S.ABORTING_TRANSACTION),  # it changes nothing
    ],
    ids=["in a transaction", "committing", "aborting"],
)
def test_a_lost_batch(manager: Callable[[], TransactionManager], after: S) -> None:
    one = manager()
    consequence = one.consequence(Event.ABORTABLE_FAILURE)
    one.fail_abortable(AbortableError("lost", error_code=87))
    assert one.state is after
    assert f"'tid' is now {after.value}: " in consequence


def committing_with_a_batch_on_its_way() -> tuple[TransactionManager, Operation]:
    manager = _open()
    operation = manager.commit_transaction()
    assert manager.poll(0, delivered=False) is None
    return manager, operation


def test_every_code_has_a_name_in_sentences() -> None:
    assert {code for code in range(-1, 128) if code not in kafka_errors} == set()


# ---- exceptions --------------------------------------------------------------------------------------------------


def test_every_class_has_an_exception_that_carries_the_code() -> None:
    for api, code in ERROR_CLASSES:
        error = exception_for(api, code, "sentence")
        assert isinstance(error, KafkaError)
        assert (error.error_code, str(error)) == (code, "sentence")


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


def test_a_decided_block_is_not_to_be_repeated() -> None:
    error = RetriableError("no response; call abort_transaction() and start again")
    note_outcome(error, Outcome.COMMITTED)
    for _ in range(2):  # harmless when repeated
        say_of_block(error)
    assert str(error) == "no response; do not repeat the block (the database has committed this block)"
