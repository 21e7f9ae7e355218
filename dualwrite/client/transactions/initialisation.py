"""The steps that take over a transactional id, and those that precede a transaction. No sockets.

The steps are a queue of requests. Those of `init_transactions()` and `complete_transaction()` are sent while the
producer is initialising; those that precede a transaction wait for its first record, so that a transaction without
records costs nothing.

A pair is a producer id and epoch. An id that was described is taken over in two phases, between which the new owner
checks that it still holds the lock of the stored pair. The first phase ends the open transaction, or else raises the
epoch; the second raises it once more. Each request names the pair that was described, or the pair that follows from it:

* transaction.version 2: EndTxn(abort) by pair. It has no effect on any other pair, however late it arrives. Its
  repetition gets the same response, so the pair after the first phase may be shared with the old owner, or with another
  process whose request was the same; the second phase fences them.
* transaction.version 0 and 1, another timeout, or a new id: InitProducerId by pair. If no transaction is open, it has
  no effect on any other pair either. But it aborts an open transaction with any pair: a late request may do harm.
  Therefore the id is described before each, and only the transaction that was decided, or its end, is accepted. Its
  repetition gets the same response too. With transaction.version 0 and 1 the old owner raises its epoch by the same
  request, so a second phase by pair could be taken for the repetition of that, and both would share the pair again and
  again. There the second phase is InitProducerId without a pair: it gets an epoch that no other producer can get, and
  an earlier pair is refused from then on.

An abort of the old owner may count as a repetition too, and its response is then the pair of the new one. So an owner
that relies on the lock takes the id over anew after each abort (`recipes/core/owned_id.py`); and where there is no
lock, the second phase is InitProducerId without a pair, after which such an abort is refused.

With KeepPreparedTxn (KIP-939) the take-over aborts nothing, so one request is enough.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

from dualwrite.client import messages as m
from dualwrite.client.transactions.recovery import (
    RAISE_CHECKS,
    RECOVERIES,
    TRANSACTIONAL_ID_NOT_FOUND,
    CoordinatorMemory,
    Described,
    DescribedState,
    Recovery,
    Relation,
    SecondDescription,
    Settling,
    compare_descriptions,
    find,
    relation_of,
    settle,
)
from dualwrite.client.transactions.tiers import (
    First,
    Plan,
    not_accepted,
    plan,
    plan_after_keep,
    tier_between_transactions,
)
from dualwrite.client.wire.versions import NEWEST_TRANSACTION_VERSION
from dualwrite.config import MAX_TRANSACTION_TIMEOUT_MS
from dualwrite.errors import Api, PreparedTransactionLost, UnsupportedByBrokerError
from dualwrite.guarantee import Guarantee, Tier, guarantee_of
from dualwrite.prepared_state import MAX_PRODUCER_EPOCH, MAX_PRODUCER_ID, PreparedTxnState

# The pair of a prepared transaction and the next one must be two epochs apart, see `recovery.py`.
_EPOCHS_APART: Final = 2

_TWO_PHASE: Final = (Tier.KEEP_PREPARED, Tier.STORED_PAIR)

_UNUSED_PAIR: Final = PreparedTxnState.of(producer_id=MAX_PRODUCER_ID, producer_epoch=0)
"""A pair that no broker assigns: an InitProducerId with it creates a new id, and leaves an existing one unchanged."""


class Step(Enum):
    """One request to the coordinator."""

    READ_FEATURES = "ApiVersions: which tier is it?"
    TRY_KEEP = "InitProducerId with KeepPreparedTxn"
    PROBE_KEEP = "InitProducerId with KeepPreparedTxn and a pair, which changes nothing: is it supported?"
    DESCRIBE = "DescribeTransactions: in which state is the id?"
    DESCRIBE_AGAIN = "DescribeTransactions: is a transaction open that was not decided?"
    TAKE_OVER = "InitProducerId: aborts an open transaction, and fences"
    SETTLE = "DescribeTransactions: did requests without a response take effect, and is the id still ours?"
    END_REOPENED = "EndTxn(abort) of a transaction that a late request opened"
    CLAIM = "InitProducerId with the pair that was described: aborts an open transaction, and fences (KIP-360)"
    RAISE_EPOCH = "InitProducerId with our own pair: another epoch, without fencing another owner (KIP-360)"
    SPEND_PAIR = "EndTxn(abort) by pair: ends its transaction if one is open, and raises the epoch (KIP-890)"


_FIRST: Final[dict[First, Step]] = {
    First.TRY_KEEP: Step.TRY_KEEP,
    First.DESCRIBE: Step.DESCRIBE,
    First.TAKE_OVER: Step.TAKE_OVER,
}


class Initialisation:
    """The broker's features as the producer knows them, and the steps left before it may write.

    Invariant: no batch is sent while a step is left, so a transaction never begins with a pair that a late request or
    another owner may still use.
    """

    def __init__(
        self,
        *,
        transactional_id: str,
        two_phase_commit: bool,
        accepts_bound: bool,
        transaction_timeout_ms: int,
    ) -> None:
        self.transaction_version = NEWEST_TRANSACTION_VERSION
        self.tier: Tier | None = None
        self.keep = False
        self.steps: deque[Step] = deque()
        self._transactional_id = transactional_id
        self._two_phase_commit = two_phase_commit
        self._accepts_bound = accepts_bound
        self._timeout_ms = transaction_timeout_ms
        self._features = m.BrokerFeatures(0, {}, 0)
        self._next_version: int | None = None
        self.found: Described | None = None
        """The description that the application decides about, or has decided about, until the take-over is done."""
        self._committed: Described | None = None
        """The description of a committed transaction that preceded KeepPreparedTxn, which erases it."""
        # a request that changes a transaction got no response since the epoch was last raised
        self._may_come_late = False
        self._raise_unanswered = False
        self._raise_checks_left = RAISE_CHECKS
        self._second_phase: tuple[Step, ...] = ()
        self._claimed = False
        self._may_keep = False
        self.is_checked_between = False
        """Whether the application holds a lock of the stored pair, and checks it between the two phases."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee on this broker."""
        return guarantee_of(self.tier, self._timeout_ms)

    @property
    def is_v2(self) -> bool:
        """Whether partitions join by Produce and each end raises the epoch (KIP-890)."""
        return self.transaction_version >= NEWEST_TRANSACTION_VERSION

    @property
    def describes(self) -> bool:
        """Whether the broker can describe transactions (KIP-664)."""
        return Api.DESCRIBE_TRANSACTIONS in self._features.versions

    @property
    def requests_two_phase_commit(self) -> bool:
        """Whether InitProducerId requests two-phase commit, which the broker may refuse."""
        return self._two_phase_commit and self.tier in (None, *_TWO_PHASE)

    # ---- requests -------------------------------------------------------------------------------------------

    def begin(self, keep: bool) -> None:
        """Begin the steps of `init_transactions()`."""
        self.keep = keep
        self._forget_description()
        self._committed = None
        self.steps = deque([Step.READ_FEATURES])

    def request(self, step: Step, pair: PreparedTxnState) -> m.Request:
        """Return the request of a step, from the producer that holds `pair` (empty: none)."""
        if step is Step.READ_FEATURES:
            return m.ApiVersions()
        if step in (Step.DESCRIBE, Step.DESCRIBE_AGAIN, Step.SETTLE):
            return m.DescribeTransaction(self._transactional_id)
        if step is Step.END_REOPENED:
            return m.EndTxn(
                self._transactional_id, pair.producer_id, pair.producer_epoch, False, self.transaction_version
            )
        if step is Step.SPEND_PAIR:
            return m.EndTxn(self._transactional_id, pair.producer_id, pair.producer_epoch, False)
        tries = step in (Step.TRY_KEEP, Step.PROBE_KEEP)
        two_phase = self._two_phase_commit and (tries or self.tier in _TWO_PHASE)
        init = m.InitProducerId(self._transactional_id, self._requested_timeout_ms(two_phase), two_phase, tries)
        if step not in (Step.RAISE_EPOCH, Step.CLAIM, Step.PROBE_KEEP):
            return init
        named = pair or _UNUSED_PAIR
        return init._replace(producer_id=named.producer_id, producer_epoch=named.producer_epoch)

    def _requested_timeout_ms(self, two_phase: bool) -> int:
        return MAX_TRANSACTION_TIMEOUT_MS if two_phase else self._timeout_ms

    # ---- responses ------------------------------------------------------------------------------------------

    def take_features(self, features: m.BrokerFeatures) -> UnsupportedByBrokerError | None:
        """Plan the take-over by the coordinator's features; return an error if they are insufficient."""
        self._features = features
        self.transaction_version = features.transaction_version
        self._next_version = None
        self.tier = None
        return self._follow(
            plan(
                features,
                two_phase_commit=self._two_phase_commit,
                keep=self.keep,
                accepted=self._accepts_bound,
                timeout_ms=self._timeout_ms,
            )
        )

    def take_refused_keep(self, error_code: int) -> UnsupportedByBrokerError | bool:
        """Plan how to go on after KeepPreparedTxn was refused, which changed nothing. False: the refusal is final."""
        following = plan_after_keep(
            error_code,
            self._features,
            two_phase_commit=self._two_phase_commit,
            keep=self.keep,
            accepted=self._accepts_bound,
            timeout_ms=self._timeout_ms,
        )
        if following is None:
            return False
        return self._follow(following) or True

    def _follow(self, following: Plan | UnsupportedByBrokerError) -> UnsupportedByBrokerError | None:
        if isinstance(following, UnsupportedByBrokerError):
            return following
        self.tier = following.tier
        self._may_keep = self.keep and following.first is First.TRY_KEEP
        self.steps = deque([Step.DESCRIBE if self._may_keep else _FIRST[following.first]])
        return None

    def take_kept(self, *, ongoing: bool) -> bool:
        """Note that KeepPreparedTxn succeeded. Return False if the open transaction is to be aborted next."""
        self.tier = Tier.KEEP_PREPARED if self._two_phase_commit else None
        self.steps.popleft()
        self._may_keep = False
        self._forget_description()
        if ongoing and not self.keep:
            self.steps.append(Step.TAKE_OVER)
            return False
        return True

    def take_description(self, described: Described) -> bool:
        """Keep a description to compare with the stored pair before anything is changed. False: requests must follow.

        KeepPreparedTxn aborts nothing, but if no transaction is open it leaves the state Empty. So an abort, which may
        be that of the stored transaction, has to be compared first; and whether KeepPreparedTxn is supported has to be
        probed in a way that changes nothing.
        """
        if self._may_keep and not described.is_aborted:
            self._committed = described if described.is_committed else None
            self.steps = deque([Step.TRY_KEEP])
            return False
        self.found = described
        if self._may_keep:
            self.steps = deque([Step.PROBE_KEEP])
            return False
        self._plan_take_over()
        return True

    def take_support_of_keep(self) -> Described:
        """Note that KeepPreparedTxn is supported, before it is used; return the description."""
        assert self.found is not None
        self.tier = Tier.KEEP_PREPARED if self._two_phase_commit else None
        self._plan_take_over()
        return self.found

    def decide(self, stored: PreparedTxnState, described: Described | None = None) -> PreparedTxnState:
        """Plan the take-over after the comparison with `stored`, which does not name the open transaction.

        `described` is a newer description, if there is one. Returns the pair with which the take-over begins.
        """
        self.found = described or self.found
        assert self.found is not None
        self._plan_take_over(stored)
        return self.found.pair

    def _plan_take_over(self, stored: PreparedTxnState | None = None) -> None:
        decided = self.found
        assert decided is not None
        if self._may_keep:
            self.steps, self._second_phase = deque([Step.TRY_KEEP]), ()
            return
        first, second = self._phases(decided, stored)
        self.steps, self._second_phase = deque([Step.DESCRIBE_AGAIN, first]), second

    def _phases(self, decided: Described, stored: PreparedTxnState | None) -> tuple[Step, tuple[Step, ...]]:
        if decided.state is DescribedState.NOT_FOUND:
            return Step.CLAIM, ()  # a second producer is refused
        if not self.is_v2:
            return Step.CLAIM, (Step.TAKE_OVER,)
        if decided.state is DescribedState.ONGOING:
            return Step.SPEND_PAIR, (self._second_of_v2(decided),)
        # An abort one epoch after the stored pair would look like a loss, and after the last epoch there is none.
        is_last = decided.pair.producer_epoch >= MAX_PRODUCER_EPOCH or decided.pair == stored
        by_abort = self._has_timeout(decided) and not is_last
        following = Step.SPEND_PAIR if self.is_checked_between else Step.TAKE_OVER
        return Step.SPEND_PAIR if by_abort else Step.CLAIM, (following,)

    def _second_of_v2(self, decided: Described) -> Step:
        if not self.is_checked_between:
            return Step.TAKE_OVER
        return Step.SPEND_PAIR if self._has_timeout(decided) else Step.CLAIM

    def _has_timeout(self, decided: Described) -> bool:
        """Return whether the id has the timeout that this producer requests: EndTxn does not change it."""
        two_phase = self._two_phase_commit and self.tier in _TWO_PHASE
        return decided.timeout_ms in (-1, self._requested_timeout_ms(two_phase))

    def take_second_description(self, now: Described) -> SecondDescription:
        """Return whether the next step may follow the description."""
        if self.found is None:
            self.steps.popleft()
            return SecondDescription.GO_ON
        comparison = compare_descriptions(self.found, now, claimed=self._claimed)
        if comparison is SecondDescription.GO_ON and self._was_created(now):
            self.found, self._claimed = now, False
            self._plan_take_over()
            self.steps.popleft()  # the description itself
        elif comparison is SecondDescription.GO_ON:
            self.steps.popleft()
            is_claim = self._claimed and now.state is DescribedState.EMPTY and now.pair != self.found.pair
            if not is_claim:  # a claim is repeated with the same pair, and gets the same response
                self.found = now
                self._claimed = False
        return comparison

    def _was_created(self, now: Described) -> bool:
        """Return whether the id was created since: by our own request without a response, or by another producer."""
        assert self.found is not None
        return self.found.state is DescribedState.NOT_FOUND and now.state is DescribedState.EMPTY

    def took_over(self, state: DescribedState, pair: PreparedTxnState) -> None:
        """Note that a step has changed the epoch, and the resulting state and pair of the id."""
        self.steps.popleft()
        self._claimed = False
        self._may_come_late = self._raise_unanswered = False
        if self.found is not None:
            self.found = Described(state, pair, -1)
        if not (self.steps or self._second_phase):
            self.found = None

    def begin_second_phase(self) -> bool:
        """Queue the steps of the second phase; return whether any step is left."""
        steps = deque((*self.steps, *self._second_phase))
        self.steps = steps
        self._second_phase = ()
        return bool(steps)

    def failed_to_take_over(self) -> None:
        """Describe again before InitProducerId is repeated: another producer may have opened a transaction."""
        if self.steps and self.steps[0] in (Step.CLAIM, Step.TAKE_OVER) and self.found is not None:
            self._claimed = True
            self.steps.appendleft(Step.DESCRIBE_AGAIN)

    def _forget_description(self) -> None:
        self.found = None
        self._second_phase = ()
        self._claimed = False

    # ---- a transaction that was found -----------------------------------------------------------------------

    def recovery(self, stored: PreparedTxnState, *, is_over: bool = False) -> Recovery | None:
        """Return how to complete by `stored`; None if there is no description to compare it with.

        `is_over`: the log has proven how the transaction of `stored` ended, so no description makes it lost.
        """
        if self.found is None:
            return None
        recovery = RECOVERIES[find(stored, self.found, self.transaction_version)]
        return Recovery.TAKE_OVER if is_over and recovery is Recovery.LOST else recovery

    def memory(self, prepared: PreparedTxnState) -> CoordinatorMemory:
        """Return the coordinator's memory; `prepared` is the open transaction that was found."""
        return CoordinatorMemory(prepared, self.found, self._committed, self.transaction_version)

    def committed(self, pair: PreparedTxnState) -> None:
        """Note that the open transaction that was found is committed, at `pair`; a later one is another producer's."""
        assert self.found is not None
        second = self._second_of_v2(self.found)
        self.found = Described(DescribedState.COMPLETE_COMMIT, pair, -1)
        self.steps.clear()
        self._second_phase = (second,) if self.is_v2 else (Step.CLAIM, Step.TAKE_OVER)  # that commit has not raised it

    def lost(self, stored: PreparedTxnState, described: Described) -> PreparedTransactionLost:
        """Return the error for a stored transaction that `described` shows to be lost."""
        if relation_of(stored, described.pair) is Relation.BEFORE:
            cause = "which is earlier: Kafka has lost data, or the stored state belongs to another cluster"
        else:
            cause = "so it was aborted, by the broker's timeout or by an operator"
        return PreparedTransactionLost(
            f"the prepared transaction {stored} of transactional id {self._transactional_id!r} was not committed: "
            f"Kafka reports {described.state.value} at {described.pair or 'no producer id'}, {cause}. The decision of "
            "the application and Kafka disagree. Nothing was changed by this producer, and each recovery with "
            "keep_prepared_txn=True raises this again. A dual write publishes it again from the log at the next use "
            "of its id, if its state row has a manifest, the records are still there, READ is granted on their "
            "topics, and it contains no consumed offsets. Otherwise repair the data, then continue with "
            "init_transactions() or, for a dual write, with `dualwrite recover --acknowledge-lost "
            f"{self._transactional_id} --apply`",
            transactional_id=self._transactional_id,
            prepared_state=str(stored),
            described_state=described.state.value,
            described_producer_id=described.pair.producer_id,
            described_producer_epoch=described.pair.producer_epoch,
            described_start_ms=described.start_ms,
        )

    # ---- between transactions -------------------------------------------------------------------------------

    def note_version(self, transaction_version: int) -> None:
        """Note the cluster's transaction.version; it is followed when no transaction is open."""
        self._next_version = transaction_version

    def follow_version(self) -> bool:
        """Adopt the transaction.version that was read last, between transactions; return whether it has changed."""
        version, self._next_version = self._next_version, None
        if version is None or version == self.transaction_version:
            return False
        was_v2 = self.is_v2
        self.transaction_version = version
        self.tier = tier_between_transactions(self.tier, version)
        if self.is_v2 and not was_v2:
            self.raise_epoch()  # KAFKA-18227
        return True

    def refuse_tier(self) -> UnsupportedByBrokerError | None:
        """Return an error if the cluster has fallen below the accepted guarantee since the initialisation."""
        if self.tier in (None, *_TWO_PHASE) or self._accepts_bound:
            return None
        assert self.tier is not None
        reason = f"the cluster runs transaction.version={self.transaction_version} now"
        return not_accepted(self.tier, reason, self._timeout_ms)

    def before_transaction(self) -> None:
        """Queue the steps that must precede the first record of a transaction."""
        if self._second_phase:
            self.begin_second_phase()
        if self._may_come_late and not self.is_v2:  # on version 2 each end has raised the epoch
            self.raise_epoch()
        self._may_come_late = False
        if self.tier is Tier.BOUNDED_V1:
            self.raise_epoch(_EPOCHS_APART)

    def raise_epoch(self, times: int = 1) -> None:
        """Queue steps that raise the epoch: the current pair must not be used for another transaction."""
        missing = times - self.steps.count(Step.RAISE_EPOCH)
        self.steps.extend([Step.RAISE_EPOCH] * missing)
        self._describe_before_raising()

    # ---- requests without a response ------------------------------------------------------------------------

    def note_unanswered(self) -> None:
        """Note that a request that changes the open transaction got no response: it may arrive in the next one."""
        self._may_come_late = True

    def raise_unanswered(self) -> None:
        """Note that the request that raises the epoch got no response: it may be on its way."""
        self._raise_unanswered = True
        self._raise_checks_left = RAISE_CHECKS
        self._describe_before_raising()

    def _describe_before_raising(self) -> None:
        """Describe the id first: another owner may have taken it over, whose open transaction a raise would abort."""
        if self.describes and Step.SETTLE not in self.steps:
            self.steps.insert(self.steps.index(Step.RAISE_EPOCH), Step.SETTLE)

    def take_settling_description(self, own: PreparedTxnState, described: Described) -> Settling:
        """Return the action after the description that precedes raising the epoch."""
        following = settle(own, described, raise_unanswered=self._raise_unanswered)
        if following is Settling.AWAIT_RAISE:
            self._raise_checks_left -= 1
            if self._raise_checks_left <= 0:
                following = Settling.RAISE
        if following is Settling.RAISE:
            self.steps.popleft()
        elif following is Settling.END_REOPENED:
            self.steps.appendleft(Step.END_REOPENED)
        return following

    def ended_reopened(self) -> None:
        """Note that the EndTxn was carried out; the next description shows the remaining steps."""
        self.steps.popleft()


def described(response: m.DescribeTransactionResponse) -> Described:
    """Return the description in a response without an error, or with the error that there is no such id.

    Raises `ValueError` for an unknown state.
    """
    if response.error_code == TRANSACTIONAL_ID_NOT_FOUND:
        return Described(DescribedState.NOT_FOUND, PreparedTxnState(), -1)
    pair = (
        PreparedTxnState()
        if response.producer_id < 0 or response.producer_epoch < 0
        else PreparedTxnState.of(producer_id=response.producer_id, producer_epoch=response.producer_epoch)
    )
    return Described(DescribedState(response.state), pair, response.start_ms, response.timeout_ms)
