"""A process with a `RecoveryService`, one round of which runs beside the owners of an id.

The service blocks, so it runs in a greenlet of its own, from which each request goes to the world. The objects that it
finds by name (the engine, the connections to Kafka) are replaced while it runs.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from unittest import mock

import greenlet

from dualwrite.client import messages as m
from dualwrite.client.admin.results import BrokerFeatures, ClusterDescription, TransactionDescription, TwoPhaseCommit
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.client.transactions.recovery import TRANSACTIONAL_ID_NOT_FOUND
from dualwrite.errors import DualWriteError, KafkaTimeoutError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.database_identity import DatabaseIdentity
from dualwrite.recipes.core.store import state_in, stayed_locked
from dualwrite.recipes.recovery import completion, log_ends, service
from dualwrite.recipes.recovery.service import RecoveryService
from dualwrite.recipes.recovery.stored_rows import StoredRow
from tests.proof.automaton import DatabaseGone, Program, Said, ask
from tests.proof.kafka_model import PROFILES, Profile
from tests.proof.kafka_requests import TRANSACTIONAL_ID
from tests.proof.owner import (
    GAVE_UP,
    Begin,
    CheckedDatabase,
    CheckedKafka,
    CheckedTransaction,
    LockInTime,
)

_LATER_S: Final = 1e6
"""When the service looks: long after every open transaction was begun."""


_IDENTITY: Final = DatabaseIdentity("aaaaaaaa")
"""Without an identity the service would leave the id alone."""


class ReadRow(NamedTuple):
    """Read the committed state row without its lock."""


def _ask(request: Hashable) -> Any:
    """Yield a request to the world from blocking code, and return its reply."""
    current = greenlet.getcurrent()
    if getattr(current, "is_abandoned", False):
        raise greenlet.GreenletExit
    try:
        return current.parent.switch(request)
    except greenlet.GreenletExit:
        current.is_abandoned = True
        raise


def _run(steps: Coroutine[Any, Any, Any]) -> Any:
    """Carry out steps as `blocking.run` does, except that their requests go to the world."""
    reply: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        reply = error = None
        try:
            reply = _ask(request)
        except BaseException as thrown:
            error = thrown


class _CheckedAdmin:
    """The part of `TransactionAdmin` that recovery uses."""

    def __init__(self, profile: Profile) -> None:
        self._version = profile.features.transaction_version
        self._keeps_prepared = profile is PROFILES[1]

    def describe_features(self) -> Mapping[int, BrokerFeatures]:
        return {1: BrokerFeatures(1, {}, {}, {"transaction.version": (self._version, self._version)}, 0)}

    def describe_cluster(self, timeout_ms: int | None = None) -> ClusterDescription:
        return ClusterDescription(None, None, ())

    def describe_two_phase_commit(self, transactional_id: str) -> dict[int, TwoPhaseCommit]:
        return {1: TwoPhaseCommit.KEEPS_PREPARED if self._keeps_prepared else TwoPhaseCommit.STORED_PAIR}

    def may_write_with(self, transactional_id: str) -> bool:
        return True

    def find_hanging(self, topic: str, **_: object) -> tuple[()]:
        return ()  # it only reports, and reads no state of these worlds

    def describe_transactions(
        self, ids: list[str], timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription | None]:
        return {each: self._described(each) for each in ids}

    @staticmethod
    def _described(transactional_id: str) -> TransactionDescription | None:
        while (response := _ask(m.DescribeTransaction(transactional_id))) is None:
            pass
        if response == GAVE_UP:
            raise KafkaTimeoutError("the coordinator does not respond; nothing was changed")
        if response.error_code == TRANSACTIONAL_ID_NOT_FOUND:
            return None
        state, pair = response.state, (response.producer_id, response.producer_epoch)
        return TransactionDescription(
            transactional_id, 1, state, *pair, response.timeout_ms, response.start_ms, frozenset()
        )


class _LogReader:
    """The part of `ParticipantProducer` that recovery uses."""

    def __init__(self, profile: Profile) -> None:
        self._kafka = CheckedKafka(profile)

    def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool) -> TransactionEnd:
        found: TransactionEnd = _run(self._kafka.end_of(manifest, timeout_ms, is_over=is_over))
        return found


class _ImpatientTransaction(CheckedTransaction):
    """A transaction that does not wait for a lock."""

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        found = await self._ask(LockInTime(self._number))
        if not found:
            raise stayed_locked(transactional_id, timeout_ms)
        return state_in(transactional_id, found[0])


class _ServicesDatabase(CheckedDatabase):
    async def begin(self) -> CheckedTransaction:
        self._begun += 1
        await ask(Begin(self._begun))
        return _ImpatientTransaction(self._begun, by_commit=False)


async def _no_sleep(seconds: float) -> None:
    pass


def _rows(*given: Any, **named: Any) -> dict[str, StoredRow]:
    found = _ask(ReadRow())
    if found is None:
        raise DatabaseGone("the rows cannot be read")
    return {TRANSACTIONAL_ID: StoredRow(*found)}


def _replaced(profile: Profile, *, fails_over: bool) -> list[Any]:
    """Return the patches of names in the modules of recovery."""
    database = _ServicesDatabase(by_commit=False, fails_over=fails_over)
    return [
        mock.patch.multiple(
            service,
            TransactionAdmin=lambda **_: _CheckedAdmin(profile),
            SQLAlchemyError=DatabaseGone,
            known_database=lambda *_, **__: (None, _IDENTITY),
            stored_rows=_rows,
            schema_for=lambda *_: None,
            watch=lambda _: None,
        ),
        mock.patch.multiple(log_ends, ParticipantProducer=lambda **_: _LogReader(profile)),
        mock.patch.multiple(
            completion,
            KafkaParticipant=lambda _: CheckedKafka(profile),
            SqlAlchemyDatabase=lambda *_, **__: database,
            blocking=SimpleNamespace(run=_run, sleep=_no_sleep),
        ),
    ]


def serves(profile: Profile, *, fails_over: bool = False) -> Program:
    """Return the program of a process that carries out one round of recovery; its result is the report."""

    def one_round() -> list[Said]:
        try:
            found = RecoveryService(
                mock.Mock(),
                transactional_ids=[TRANSACTIONAL_ID],
                min_age_ms=0,
                clock=lambda: _LATER_S,
                bootstrap_servers="localhost:9092",
            ).recover()
        except (DualWriteError, DatabaseGone) as error:
            return [("service", type(error).__name__)]
        return [("service", each.action.value, each.changed) for each in found.found]

    async def program(told: list[Said]) -> None:
        replaced = _replaced(profile, fails_over=fails_over)
        running = greenlet.greenlet(one_round)

        def switch(*reply: Any) -> Any:
            with ExitStack() as patches:
                for patch in replaced:
                    patches.enter_context(patch)
                return running.switch(*reply)

        request = switch()
        while not running.dead:
            request = switch(await ask(request))
        told += request

    return program
