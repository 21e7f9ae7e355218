"""Mistakes that the search has to find: the proof that it would see a mistake if there were one.

`python -m tests.proof.kill_mutants` plants each of them in a copy of the code, and searches the space in which the
smallest story was found. Mistakes that are not seen in any space are on the page, docs/internals/mutants.md, each with
the reason.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.proof.outbox_world import OutboxSpace
from tests.proof.producers import ProducerSpace
from tests.proof.spaces import Space, both_ways
from tests.proof.world import Budget

_TRANSACTIONS_COORDINATOR: Final = "dualwrite/broker_emulator/transactions/coordinator.py"
_INIT_PRODUCER_ID: Final = "dualwrite/broker_emulator/transactions/init_producer_id.py"
_TRANSITIONS: Final = "dualwrite/broker_emulator/transactions/transitions.py"
_TRANSACTION_END: Final = "dualwrite/client/log/transaction_end.py"
_INITIALISATION: Final = "dualwrite/client/transactions/initialisation.py"
_MANAGER: Final = "dualwrite/client/transactions/manager.py"
_OPEN_TRANSACTION: Final = "dualwrite/client/transactions/open_transaction.py"
_RECOVERY: Final = "dualwrite/client/transactions/recovery.py"
_TAKE_OVER: Final = "dualwrite/client/transactions/take_over.py"
_BY_ROW: Final = "dualwrite/decisions/by_row.py"
_COMPLETION: Final = "dualwrite/recipes/core/completion.py"
_LAST_BATCH: Final = "dualwrite/recipes/core/last_batch.py"
_OWNED_ID: Final = "dualwrite/recipes/core/owned_id.py"
_PUBLISHING: Final = "dualwrite/recipes/core/publishing.py"
_REPAIR: Final = "dualwrite/recipes/core/repair.py"
_STEPS: Final = "dualwrite/recipes/core/steps.py"
_STORED_BLOCKS: Final = "dualwrite/recipes/core/stored_blocks.py"
_POOL_COORDINATOR: Final = "dualwrite/recipes/pool/coordinator.py"
_OUTBOX: Final = "dualwrite/recipes/pool/outbox.py"
_DIVERSION_STATEMENTS: Final = "dualwrite/recipes/sql/diversion_statements.py"
_OUTBOX_ELSEWHERE: Final = "dualwrite/recipes/sql/outbox_elsewhere.py"
_OUTBOX_STATEMENTS: Final = "dualwrite/recipes/sql/outbox_statements.py"
_OUTBOX_STEPS: Final = "dualwrite/recipes/sql/outbox_steps.py"
_KAFKA_LOG: Final = "tests/proof/kafka_log.py"
_KAFKA_MODEL: Final = "tests/proof/kafka_model.py"
_WORLD: Final = "tests/proof/world.py"


AnySpace = Space | ProducerSpace | OutboxSpace


class Edit(NamedTuple):
    """A text that stands once in a file, and its replacement."""

    file: str
    line: str
    wrong: str


class Mutant(NamedTuple):
    """A mistake, the guard that it removes, and the space that finds it."""

    name: str
    stands_for: str
    """The guard that is missing then."""
    space: AnySpace
    edits: tuple[Edit, ...]


_BOTH_WAYS: Final = both_ways(1, Budget(outages=1))
_BACK: Final = both_ways(1, Budget(), ((), (b"b1",)))._replace(is_diverted=True)
"""One process publishes, and another adds a block."""


def _in(
    tier: int,
    written: str,
    *,
    by_commit: bool = False,
    is_plain: bool = False,
    **faults: int,
) -> Space:
    """Return a space; `written` are the values of each process, as for `python -m tests.proof.explore`."""
    values = tuple(tuple(value.encode() for value in process.split(",")) for process in written.split("/"))
    return Space(tier, Budget(**faults), values, by_commit=by_commit, is_plain=is_plain)


def _producers(tier: int, ends: str) -> ProducerSpace:
    """Return a space of producers without a lock; `ends` like "abort,abort/commit": how those of each process end."""
    return ProducerSpace(tier, tuple(tuple(process.split(",")) for process in ends.split("/")))


def _mutant(name: str, stands_for: str, space: AnySpace, *edits: Edit) -> Mutant:
    return Mutant(name, stands_for, space, edits)


MUTANTS: Final = (
    # durability, restores and operators
    _mutant(
        "make-durable-left-out",
        "a take-over makes the row durable before Kafka is told",
        _in(1, "a1/b1", failovers=1, losses=1),
        Edit(_COMPLETION, "await owned.make_durable(row, ongoing)", "pass"),
    ),
    _mutant(
        "lost-commit-not-durable",
        "the outcome of a lost COMMIT is made durable before Kafka is told",
        _in(1, "a1", failovers=1, losses=1),
        Edit(_COMPLETION, "await self._make_durable_or_stay_unresolved(row)", "pass"),
    ),
    _mutant(
        "repaired-not-looked-for",
        "records that were published again are not published once more for a restored database",
        _in(3, "a1,a2", restores=1, timeouts=1),
        Edit(_REPAIR, "await _assert_not_repaired(owned, database, manifest, end, ongoing)", "pass"),
    ),
    _mutant(
        "later-commit-ignored",
        "a take-over reports a restored database when Kafka has committed a transaction later than the row's",
        _in(3, "a1,a2,a3", by_commit=True, restores=1),
        Edit(_COMPLETION, "if not proof.owed and await _is_behind(owned, row, text):", "if False:"),
    ),
    _mutant(
        "restored-row-taken-for-a-successor",
        "a writer reports a restored database when its row has changed and no other process has used its id",
        _in(1, "a1,a2,a3", by_commit=True, restores=1),
        Edit(_COMPLETION, "if is_current:", "if False:"),
    ),
    _mutant(
        "committed-not-verified",
        "a commit that the coordinator confirms is looked up in the log",
        _in(1, "a1", aborts=1),
        Edit(_COMPLETION, "if proof.is_known:", "if False:"),
    ),
    # completion
    _mutant(
        "no-reading-after-completion",
        "the third and the fourth reading",
        _in(3, "a1,a2/b1", kills=2),
        Edit(
            _COMPLETION,
            (
                "owned.telemetry.reach(PausePoint.AFTER_COMPLETION)\n"
                "        await _assert_still_locked(owned, database, row)"
            ),
            "owned.telemetry.reach(PausePoint.AFTER_COMPLETION)",
        ),
        Edit(
            _COMPLETION,
            (
                "owned.telemetry.reach(PausePoint.AFTER_TAKEOVER)\n"
                "        await _assert_still_locked(owned, database, row)"
            ),
            "owned.telemetry.reach(PausePoint.AFTER_TAKEOVER)",
        ),
    ),
    _mutant(
        "row-read-once",
        "the second reading: the row and its manifest are read before the id is initialised",
        _in(3, "a1/b1", kills=1),
        Edit(_COMPLETION, "row = await database.read(owned.transactional_id)", "row = owned.read_before"),
        Edit(_COMPLETION, "text = await database.read_manifest(owned.transactional_id)", 'text = ""'),
        Edit(_COMPLETION, "if await is_of_another_cluster(owned, row, text, ongoing):", "if False:"),
        Edit(_STEPS, "owned.telemetry.reach(PausePoint.AFTER_LOCK)", "owned.read_before = row"),
        Edit(_PUBLISHING, "owned.telemetry.reach(PausePoint.AFTER_LOCK)", "owned.read_before = row"),
    ),
    _mutant(
        "remembered-row",
        "the row is read at all at a take-over",
        _in(1, "a1"),
        Edit(_COMPLETION, "row = await database.read(owned.transactional_id)", "row = owned.row"),
    ),
    _mutant(
        "no-proof",
        "the log is asked where the coordinator cannot tell",
        _in(4, "a1", crashes=1),
        Edit(_COMPLETION, "proof = await prove(owned, database, row, text, ongoing)", "proof = KNOWN"),
        Edit(_COMPLETION, "proof import IS_OVER, Proof", "proof import IS_OVER, KNOWN, Proof"),
    ),
    _mutant(
        "nothing-completed",
        "a take-over completes the transaction in doubt",
        _in(1, "a1", crashes=1),
        Edit(_COMPLETION, "await _complete(owned, database, stored, proof, again=again)", "pass"),
    ),
    _mutant(
        "never-over",
        "the log's proof outweighs the coordinator",
        _in(4, "a1", crashes=1),
        Edit(_COMPLETION, "is_over=proof.is_over)", "is_over=False)"),
    ),
    _mutant(
        "not-owned",
        "the second phase of a take-over fences",
        _in(3, "a1"),
        Edit(_COMPLETION, "await owned.kafka.own()", "pass"),
    ),
    _mutant(
        "owed-forgotten",
        "records that the log shows as aborted are owed",
        _in(4, "a1", crashes=1),
        Edit(_COMPLETION, "owed=proof.owed", "owed=()"),
    ),
    _mutant(
        "row-not-remembered",
        "a take-over remembers the row",
        _in(1, "a1", crashes=1),
        Edit(_COMPLETION, "row=row, owed=proof.owed", "owed=proof.owed"),
    ),
    _mutant(
        "aborted-meanwhile",
        "an abort between the description and the commit is repaired",
        _in(3, "a1/b1", timeouts=1),
        Edit(_COMPLETION, "if proof.is_known and not again:", "if False:"),
    ),
    _mutant(
        "went-back-falsely",
        "a row that another process has changed is no restored database",
        _in(1, "a1,a2/b1"),
        Edit(_COMPLETION, "if is_current:", "if True:"),
    ),
    _mutant(
        "evidence-without-lock",
        "the outcome of a lost COMMIT is read under the lock",
        _in(1, "a1", losses=1),
        Edit(
            _COMPLETION,
            "return await database.lock(owned.transactional_id, timeout_ms=timeout_ms)",
            "return await database.read(owned.transactional_id)",
        ),
    ),
    _mutant(
        "resolve-forgets-outcome",
        "a lost COMMIT that took effect commits Kafka",
        _in(1, "a1,a2", losses=1),
        Edit(
            _COMPLETION,
            "await owned.complete_kafka(ours, outcome)",
            "await owned.complete_kafka(ours, Outcome.ROLLED_BACK)",
        ),
    ),
    # decisions
    _mutant(
        "ours-means-rolled-back",
        "the row decides a lost COMMIT: ours",
        _in(1, "a1", losses=1),
        Edit(_BY_ROW, "        return Outcome.COMMITTED", "        return Outcome.ROLLED_BACK"),
    ),
    _mutant(
        "previous-means-superseded",
        "the row decides a lost COMMIT: the previous row",
        _in(1, "a1", kills=1),
        Edit(_BY_ROW, "if row == previous:", "if row == previous and False:"),
    ),
    _mutant(
        "superseded-means-rolled-back",
        "a replaced row does not tell the outcome",
        _in(1, "a1/b1", losses=1),
        Edit(_BY_ROW, "if row == previous:", "if row != ours:"),
    ),
    # steps
    _mutant(
        "ready-row-not-compared",
        "the row of a READY id is compared, and the id described before its epoch is raised",
        _in(4, "a1,a2/b1"),
        Edit(_STEPS, "if row == known.row:\n                return row", "return row"),
        Edit(_INITIALISATION, "if self.describes and Step.SETTLE not in self.steps:", "if False:"),
    ),
    _mutant(
        "kafka-first",
        "the database commits before Kafka",
        _in(1, "a1"),
        Edit(
            _STEPS,
            "await write.database.commit()",
            "await self._owned.kafka.commit()\n            await write.database.commit()",
        ),
    ),
    _mutant(
        "commit-without-prepare",
        "the records are stored before the decision",
        _in(4, "a1"),
        Edit(
            _STEPS,
            "write.prepared_state = await kafka.prepare()",
            "write.prepared_state = kafka._live.next_prepared_state  # type: ignore[attr-defined]",
        ),
    ),
    _mutant(
        "kafka-never-commits",
        "Kafka follows the decision",
        _in(1, "a1"),
        Edit(_STEPS, "await owned.complete_kafka(ours, Outcome.COMMITTED)", "pass"),
    ),
    _mutant(
        "owed-not-sent",
        "owed records are sent with the next dual write",
        _in(4, "a1", crashes=1),
        Edit(_STEPS, "await kafka.send((*owed, *ahead)", "await kafka.send((*ahead,)"),
    ),
    _mutant(
        "owed-sent-last",
        "owed records go first",
        _in(3, "a1/b1", timeouts=1),
        Edit(
            _STEPS,
            (
                "await kafka.send((*owed, *ahead), sent, any_size=True)\n"
                "            await kafka.send(write.records, sent)"
            ),
            (
                "pass\n"
                "            await kafka.send(write.records, sent)\n"
                "            await kafka.send((*owed, *ahead), sent, any_size=True)"
            ),
        ),
    ),
    _mutant(
        "manifest-not-written",
        "the manifest is stored with the state",
        _in(4, "a1", crashes=1),
        Edit(
            _STEPS, "previous=previous, new=new, manifest=owned.manifest)", 'previous=previous, new=new, manifest="")'
        ),
    ),
    _mutant(
        "state-not-written",
        "the state is stored with the decision",
        _in(1, "a1,a2"),
        Edit(
            _STEPS,
            "await write.database.write(owned.transactional_id, previous=previous, new=new, manifest=owned.manifest)",
            "pass",
        ),
    ),
    _mutant(
        "no-open-rollback",
        "a rollback aborts in Kafka too",
        _in(1, "a1", kills=1),
        Edit(
            _STEPS,
            "self._slot.state in (SlotState.OPEN, SlotState.DECIDING)",
            "self._slot.state in (SlotState.DECIDING,)",
        ),
    ),
    _mutant(
        "sent-commit-rolled-back",
        "a COMMIT that was sent is not rolled back by guess",
        _in(1, "a1", losses=1),
        Edit(_STEPS, "if not write.database.commit_was_sent:", "if True:"),
    ),
    _mutant(
        "lost-commit-committed",
        "a COMMIT without a response is no decision yet",
        _in(1, "a1", kills=1),
        Edit(
            _STEPS,
            "self._lost_commits.begin(write)",
            "return await self._after_commit(write)\n        self._lost_commits.begin(write)",
        ),
    ),
    _mutant(
        "rolled-back-not-raised",
        "the caller hears that a lost COMMIT was rolled back",
        _in(1, "a1", kills=1),
        Edit(_STEPS, "if outcome is Outcome.ROLLED_BACK:", "if False:"),
    ),
    # owned id
    _mutant(
        "ready-with-old-row",
        "a committed dual write is remembered as the row",
        _in(1, "a1,a2"),
        Edit(_OWNED_ID, "row = state if outcome is Outcome.COMMITTED else None", "row = None"),
    ),
    # take over
    _mutant(
        "failed-producer-goes-on",
        "the producer whose commit another process completed refuses every later call (found by the search)",
        _in(1, "a1,a2/b1", kills=1),
        Edit(_TAKE_OVER, "if by_another is None or context.transaction.leaves_id:", "if True:"),
    ),
    # owned id
    _mutant(
        "owed-rolled-back",
        "owed records stay owed after a rollback",
        _in(1, "a1,a2,a3", terminations=1, kills=1),
        Edit(
            _OWNED_ID,
            (
                "await self.leave_in_doubt(self.row)  # the row stays as it is, and so do the owed records\n"
                "                return"
            ),
            "self.slot.note(owed=())",
        ),
    ),
    _mutant(
        "owed-twice",
        "records that were published again are owed no more",
        _in(3, "a1,a2/b1", timeouts=1),
        Edit(_OWNED_ID, "self.slot.note(owed=())", "pass"),
    ),
    _mutant(
        "aborted-pair-kept",
        "the pair that an abort returns may be another process's, so the producer is given up",
        _in(3, "a1,a2,a3/b1", kills=2),
        Edit(_OWNED_ID, "return self.kafka.guarantee.tier is not Tier.KEEP_PREPARED", "return False"),
    ),
    _mutant(
        "commit-and-abort-swapped",
        "Kafka follows the outcome",
        _in(1, "a1"),
        Edit(
            _OWNED_ID,
            "if outcome is Outcome.COMMITTED:\n                await self.kafka.commit()",
            "if outcome is not Outcome.COMMITTED:\n                await self.kafka.commit()",
        ),
    ),
    _mutant(
        "fenced-is-ready",
        "a fenced producer is given up",
        _in(1, "a1,a2", losses=1),
        Edit(_OWNED_ID, "self.slot.move(SlotState.FENCED, in_doubt=", "self.slot.move(SlotState.READY, in_doubt="),
    ),
    # publishing
    _mutant(
        "owed-settled",
        "recover() publishes the owed records",
        _in(4, "a1", crashes=1),
        Edit(
            _PUBLISHING,
            (
                "row, resolution, proof = await take_over(owned, database)\n"
                "            waiting = await self._blocks.oldest(database)\n"
                "            if owned.owed or waiting.blocks:"
            ),
            (
                "row, resolution, proof = await take_over(owned, database)\n"
                "            waiting = await self._blocks.oldest(database)\n"
                "            if waiting.blocks:"
            ),
        ),
    ),
    _mutant(
        "recover-without-takeover",
        "recover() takes the id over",
        _in(1, "a1", crashes=1),
        Edit(
            _PUBLISHING,
            "row, resolution, proof = await take_over(owned, database)",
            "resolution = Resolution(owned.transactional_id, NOTHING_PREPARED, Outcome.NOTHING)",
        ),
    ),
    _mutant(
        "settled-unconfirmed",
        "a row is settled only when Kafka has confirmed",
        _in(3, "a1", timeouts=2, give_ups=1),
        Edit(
            _PUBLISHING, "if self._slot.state is not SlotState.READY:\n            return\n        expected", "expected"
        ),
        Edit(
            _PUBLISHING,
            "if row == owned.row:\n                if (await verify",
            "if True:\n                if False and (await verify",
        ),
    ),
    _mutant(
        "unconfirmed-not-said",
        "recover() says so if Kafka has not confirmed its records",
        _in(3, "a1", crashes=1, timeouts=1, give_ups=1),
        Edit(
            _PUBLISHING, "await self._settle_last()\n            self._assert_confirmed()", "await self._settle_last()"
        ),
    ),
    # repair
    _mutant(
        "coordinator-always-knows",
        "the log is asked where the coordinator cannot tell",
        _in(1, "a1", foreigners=1),
        Edit(_REPAIR, "if owned.kafka.memory.knows(row):", "if True:"),
    ),
    _mutant(
        "abort-not-seen",
        "an abort in the log is repaired",
        _in(3, "a1", timeouts=1),
        Edit(_REPAIR, "if end.aborted:\n        return await", "if False:\n        return await"),
    ),
    _mutant(
        "commit-not-seen",
        "a commit in the log is a commit, whatever the coordinator says",
        _in(4, "a1,a2", crashes=1, losses=1),
        Edit(_REPAIR, "if end.committed:", "if False:"),
    ),
    _mutant(
        "not-aborted-is-committed",
        "abort and commit in the log",
        _in(4, "a1", crashes=1),
        Edit(_REPAIR, "if end.aborted:\n        return await", "if not end.aborted:\n        return await"),
    ),
    _mutant(
        "one-record-repaired",
        "all records of an aborted transaction are published again",
        _in(3, "a1/b1", timeouts=2),
        Edit(
            _REPAIR,
            "[to_send(record) for record in in_log]",
            "[to_send(record) for record in in_log][:1]",
        ),
    ),
    _mutant(
        "hanging-not-asked-again",
        "the coordinator is asked before a marker is called missing",
        _in(1, "a1", crashes=1, give_ups=2),
        Edit(_REPAIR, "await owned.kafka.is_current()", "pass"),
    ),
    _mutant(
        "ending-is-hanging",
        "a marker that is under way is not missing",
        _in(3, "a1", crashes=1, timeouts=1, give_ups=1),
        Edit(_REPAIR, "if owned.kafka.memory.is_ending:", "if False:"),
    ),
    # open transaction
    _mutant(
        "manifest-one-short",
        "the manifest counts every record",
        _in(3, "a1/b1", timeouts=2),
        Edit(_OPEN_TRANSACTION, "stored[2] += record_count", "stored[2] += 0"),
    ),
    _mutant(
        "manifest-kept",
        "the manifest of one transaction does not reach the next",
        _in(3, "a1,a2", timeouts=1),
        Edit(
            _OPEN_TRANSACTION,
            "self.are_known = True\n        if self._ranges:\n            self._ranges.clear()",
            "pass",
        ),
    ),
    # transaction end
    _mutant(
        "end-mistaken",
        "aborted and committed partitions",
        _in(3, "a1", timeouts=1),
        Edit(
            _TRANSACTION_END, "return self._those(PartitionEnd.ABORTED)", "return self._those(PartitionEnd.COMMITTED)"
        ),
    ),
    _mutant(
        "end-never-committed",
        "a committed partition",
        _in(4, "a1,a2", crashes=1, losses=1),
        Edit(
            _TRANSACTION_END,
            "return PartitionEnd.COMMITTED in self.by_partition.values() and not self.aborted",
            "return False",
        ),
    ),
    _mutant(
        "settled-unverified",
        "recover() finds its records committed in the log before it settles the row",
        _in(3, "a1", timeouts=1, aborts=1),
        Edit(
            _PUBLISHING,
            "if (await verify(owned, database, row)).owed:",
            "if False and (await verify(owned, database, row)).owed:",
        ),
    ),
    _mutant(
        "torn-inside-is-committed",
        "the first records of a partition may be aborted where the last one is committed",
        _in(3, "a1/b1", timeouts=1, aborts=1),
        Edit(
            _KAFKA_LOG,
            'return _committed_in_part(log, request) if entry.committed else "ABORTED"',
            'return "COMMITTED" if entry.committed else "ABORTED"',
        ),
    ),
    # recovery
    _mutant(
        "open-taken-for-other",
        "FINDINGS: the open transaction is the stored one",
        _in(3, "a1", crashes=1),
        Edit(_RECOVERY, "(_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3", "(_F.OTHER_OPEN,) * 5"),
    ),
    _mutant(
        "next-open-taken-for-stored",
        "FINDINGS: a later open transaction is not the stored one",
        _in(3, "a1,a2", crashes=1),
        Edit(
            _RECOVERY,
            "(_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3",
            "(_F.OTHER_OPEN, _F.OPEN, _F.OPEN, _F.OTHER_OPEN, _F.OTHER_OPEN)",
        ),
    ),
    _mutant(
        "further-open-taken-for-stored",
        "FINDINGS: an open transaction two epochs later is not the stored one",
        _in(4, "a1,a2", crashes=1),
        Edit(
            _RECOVERY,
            "(_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3",
            "(_F.OTHER_OPEN, _F.OPEN, _F.OTHER_OPEN, _F.OTHER_OPEN, _F.OPEN)",
        ),
    ),
    _mutant(
        "nothing-stored-commits",
        "FINDINGS: with nothing stored, nothing is committed",
        _in(3, "a1", crashes=1),
        Edit(_RECOVERY, "(_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3", "(_F.OPEN,) * 2 + (_F.OTHER_OPEN,) * 3"),
    ),
    _mutant(
        "other-pid-commits",
        "FINDINGS: an open transaction of another producer id is not the stored one",
        _in(3, "a1/b1", crashes=1, expiries=1),
        Edit(_RECOVERY, "+ (_F.VANISHED, _F.OTHER_OPEN),", "+ (_F.VANISHED, _F.OPEN),"),
    ),
    _mutant(
        "empty-is-aborted",
        "FINDINGS: an initialised id tells nothing",
        _in(3, "a1", crashes=1),
        Edit(_RECOVERY, "DescribedState.EMPTY: (_F.NO_TRACE,) * 5", "DescribedState.EMPTY: (_F.ABORTED,) * 5"),
    ),
    _mutant(
        "open-is-taken-over",
        "RECOVERIES: the stored transaction is committed",
        _in(3, "a1", crashes=1),
        Edit(_RECOVERY, "Finding.OPEN: Recovery.COMMIT", "Finding.OPEN: Recovery.TAKE_OVER"),
    ),
    _mutant(
        "other-open-is-committed",
        "RECOVERIES: another transaction is aborted",
        _in(3, "a1", crashes=1),
        Edit(_RECOVERY, "Finding.OTHER_OPEN: Recovery.TAKE_OVER", "Finding.OTHER_OPEN: Recovery.COMMIT"),
    ),
    _mutant(
        "committed-is-committed-again",
        "RECOVERIES: a committed transaction is not committed again",
        _in(3, "a1", crashes=1),
        Edit(_RECOVERY, "Finding.COMMITTED: Recovery.TAKE_OVER", "Finding.COMMITTED: Recovery.COMMIT"),
    ),
    _mutant(
        "committed-is-lost",
        "RECOVERIES: a committed transaction is not lost",
        _in(3, "a1", crashes=1),
        Edit(_RECOVERY, "Finding.COMMITTED: Recovery.TAKE_OVER", "Finding.COMMITTED: Recovery.LOST"),
    ),
    _mutant(
        "no-trace-is-lost",
        "RECOVERIES: an id that tells nothing is taken over",
        _in(4, "a1", crashes=1),
        Edit(_RECOVERY, "Finding.NO_TRACE: Recovery.TAKE_OVER", "Finding.NO_TRACE: Recovery.LOST"),
    ),
    _mutant(
        "no-trace-is-committed",
        "RECOVERIES: an id that tells nothing commits nothing",
        _in(3, "a1"),
        Edit(_RECOVERY, "Finding.NO_TRACE: Recovery.TAKE_OVER", "Finding.NO_TRACE: Recovery.COMMIT"),
    ),
    _mutant(
        "relation-same-for-next",
        "the epoch after the stored one is another",
        _in(3, "a1,a2", crashes=1),
        Edit(_RECOVERY, "return (Relation.SAME, Relation.NEXT)[ahead]", "return (Relation.SAME, Relation.SAME)[ahead]"),
    ),
    _mutant(
        "overtaken-goes-on",
        "only the decided description or its own end is accepted",
        _in(3, "a1,a2/b1", kills=1),
        Edit(
            _RECOVERY,
            "return SecondDescription.GO_ON\n    return SecondDescription.OVERTAKEN",
            "return SecondDescription.GO_ON\n    return SecondDescription.GO_ON",
        ),
    ),
    # initialisation
    _mutant(
        "open-is-claimed",
        "EndTxn by pair instead of InitProducerId",
        _in(3, "a1", crashes=1),
        Edit(
            _INITIALISATION,
            "return Step.SPEND_PAIR, (self._second_of_v2(decided),)",
            "return Step.CLAIM, (self._second_of_v2(decided),)",
        ),
    ),
    _mutant(
        "second-phase-by-pair",
        "version 1: the second phase fences every producer of the id, not only the pair that was described",
        _producers(4, "abort,abort/commit"),
        Edit(_INITIALISATION, "return Step.CLAIM, (Step.TAKE_OVER,)", "return Step.CLAIM, (Step.CLAIM,)"),
    ),
    _mutant(
        "second-phase-spends-pair",
        "only a process that checks its lock between the phases ends the second one by pair",
        _producers(3, "abort,abort,commit/commit,commit"),
        Edit(
            _INITIALISATION,
            "following = Step.SPEND_PAIR if self.is_checked_between else Step.TAKE_OVER",
            "following = Step.SPEND_PAIR",
        ),
        Edit(_INITIALISATION, "if not self.is_checked_between:", "if False:"),
    ),
    _mutant(
        "one-phase-v1",
        "version 1: the second phase",
        _producers(4, "abort,abort/commit"),
        Edit(_INITIALISATION, "return Step.CLAIM, (Step.TAKE_OVER,)", "return Step.CLAIM, ()"),
    ),
    _mutant(
        "one-phase-open",
        "the second phase, after a transaction that was open",
        _producers(3, "abort,abort,commit/commit,commit"),
        Edit(_INITIALISATION, "return Step.SPEND_PAIR, (self._second_of_v2(decided),)", "return Step.SPEND_PAIR, ()"),
    ),
    _mutant(
        "one-phase-idle",
        "the second phase, where nothing was open",
        _producers(3, "abort,abort,commit/commit,commit"),
        Edit(
            _INITIALISATION,
            "return Step.SPEND_PAIR if by_abort else Step.CLAIM, (following,)",
            "return Step.SPEND_PAIR if by_abort else Step.CLAIM, ()",
        ),
    ),
    _mutant(
        "one-phase-committed",
        "the second phase, after a commit",
        _in(3, "a1,a2/b1", kills=1),
        Edit(
            _INITIALISATION,
            "self._second_phase = (second,) if self.is_v2 else (Step.CLAIM, Step.TAKE_OVER)",
            "self._second_phase = ()",
        ),
    ),
    _mutant(
        "new-id-unfenced",
        "a new id is claimed by a pair that no producer has",
        _in(3, "a1/b1", kills=1),
        Edit(_INITIALISATION, "return Step.CLAIM, ()  # a second", "return Step.TAKE_OVER, ()  # a second"),
    ),
    _mutant(
        "commit-by-any-pair",
        "the description is compared with the row",
        _in(3, "a1", crashes=1),
        Edit(
            _INITIALISATION,
            "recovery = RECOVERIES[find(stored, self.found, self.transaction_version)]",
            "recovery = Recovery.COMMIT",
        ),
    ),
    _mutant(
        "over-is-lost",
        "a transaction that the log proves to be over is not lost",
        _in(4, "a1", crashes=1),
        Edit(
            _INITIALISATION,
            "return Recovery.TAKE_OVER if is_over and recovery is Recovery.LOST else recovery",
            "return recovery",
        ),
    ),
    _mutant(
        "no-epoch-apart",
        "version 1: another epoch for each transaction",
        _in(4, "a1,a2"),
        Edit(_INITIALISATION, "self.raise_epoch(_EPOCHS_APART)", "pass"),
    ),
    # manager
    _mutant(
        "unanswered-not-noted",
        "an unanswered request raises the epoch",
        _in(4, "a1,x2", is_plain=True, losses=1),
        Edit(
            _MANAGER,
            (
                "elif step is None and isinstance(request, _MAY_COME_LATE):\n"
                "            self.initialisation.note_unanswered()"
            ),
            "elif False:\n            pass",
        ),
    ),
    # initialisation
    _mutant(
        "keep-spends-pair",
        "KeepPreparedTxn keeps",
        _in(1, "a1", crashes=1),
        Edit(_INITIALISATION, "if ongoing and not self.keep:", "if ongoing:"),
    ),
    _mutant(
        "no-keep",
        "InitProducerId keeps the prepared transaction",
        _in(1, "a1", crashes=1),
        Edit(
            _INITIALISATION,
            "init = m.InitProducerId(self._transactional_id, self._requested_timeout_ms(two_phase), two_phase, tries)",
            "init = m.InitProducerId(self._transactional_id, self._requested_timeout_ms(two_phase), two_phase, False)",
        ),
    ),
    # manager
    _mutant(
        "prepared-undelivered",
        "prepared means that every record is stored",
        _in(3, "a1", losses=1),
        Edit(_MANAGER, "if delivered:\n            self.settle_without_kafka()", "self.settle_without_kafka()"),
    ),
    _mutant(
        "commit-undelivered",
        "EndTxn waits for the records",
        _in(4, "a1", is_plain=True, losses=1),
        Edit(_MANAGER, "if state in _ENDING and delivered:", "if state in _ENDING:"),
    ),
    _mutant(
        "partitions-not-added",
        "version 1: partitions join before records",
        _in(4, "a1"),
        Edit(
            _MANAGER,
            "return self.initialisation.is_v2 or self.transaction.partitions.may_write(topic, partition)",
            "return True",
        ),
    ),
    _mutant(
        "next-pair-ignored",
        "the pair of the EndTxn response is used",
        _in(3, "a1,a2"),
        Edit(
            _MANAGER,
            (
                "if response.producer_id != -1:\n"
                "            self.producer_id = response.producer_id\n"
                "            self.producer_epoch = response.producer_epoch"
            ),
            "pass",
        ),
    ),
    # take over
    _mutant(
        "found-not-adopted",
        "the commit names the pair that was found",
        _in(3, "a1", crashes=1),
        Edit(
            _TAKE_OVER,
            "context.adopt(found.pair)\n            context.transaction.leaves_id = not take_over",
            "context.transaction.leaves_id = not take_over",
        ),
    ),
    # manager
    _mutant(
        "current-is-not-compared",
        "is_current compares the pair",
        _in(1, "a1,a2/b1"),
        Edit(_MANAGER, "return described is not None and described.pair == self.pair", "return described is not None"),
    ),
    # coordinator
    _mutant(
        "broker-zombie-commits",
        "EndTxn: a retry of the last decision does not end the next transaction",
        _in(3, "a1,a2", losses=1),
        Edit(
            _TRANSACTIONS_COORDINATOR,
            "_S.ONGOING:         (_END,            _FENCED,         _END,            _FENCED),",
            "_S.ONGOING:         (_END,            _END,            _END,            _FENCED),",
        ),
    ),
    _mutant(
        "broker-zombie-aborts",
        "EndTxn: a retry of the last abort does not end the next transaction",
        _in(3, "x1,a2", is_plain=True, losses=1),
        Edit(
            _TRANSACTIONS_COORDINATOR,
            "_S.ONGOING:         (_END,            _FENCED,         _END,            _FENCED),",
            "_S.ONGOING:         (_END,            _FENCED,         _END,            _END),",
        ),
    ),
    _mutant(
        "broker-epoch-not-compared",
        "EndTxn compares the epoch",
        _in(4, "a1/b1", kills=1),
        Edit(_TRANSACTIONS_COORDINATOR, "        return ErrorCode.producer_fenced", "        return NO_ERROR"),
    ),
    _mutant(
        "broker-writer-epoch",
        "adding a partition compares the epoch",
        _in(1, "a1,a2", losses=1),
        Edit(_TRANSACTIONS_COORDINATOR, "return ErrorCode.producer_fenced\n\n", "return NO_ERROR\n\n"),
    ),
    _mutant(
        "broker-dual-identity",
        "KIP-939: only the recovering client ends the transaction",
        _in(1, "a1", crashes=1),
        Edit(
            _TRANSACTIONS_COORDINATOR,
            "return NO_ERROR if pair == metadata.client_pair else ErrorCode.producer_fenced",
            "return NO_ERROR",
        ),
    ),
    # transitions
    _mutant(
        "broker-no-bump",
        "KIP-890: each end raises the epoch",
        _in(3, "a1,a2"),
        Edit(_TRANSITIONS, "producer_epoch=before.producer_epoch + 1,", "producer_epoch=before.producer_epoch,"),
    ),
    _mutant(
        "broker-keep-no-bump",
        "KIP-939: KeepPreparedTxn fences",
        _in(1, "a1", crashes=1),
        Edit(_TRANSITIONS, "if limit_reached else _bumped(client)", "if limit_reached else client"),
    ),
    # coordinator
    _mutant(
        "broker-keep-aborts",
        "KIP-939: KeepPreparedTxn aborts nothing",
        _in(1, "a1/b1"),
        Edit(
            _INIT_PRODUCER_ID,
            "if request.keep_prepared and (metadata.is_two_phase_commit or",
            "if False and (metadata.is_two_phase_commit or",
        ),
    ),
    _mutant(
        "broker-init-no-bump",
        "InitProducerId raises the epoch",
        _in(4, "a1,a2"),
        Edit(_INIT_PRODUCER_ID, "pair = ProducerPair(pid, epoch + 1)", "pair = ProducerPair(pid, max(epoch, 0))"),
    ),
    _mutant(
        "broker-init-over-open",
        "InitProducerId aborts the open transaction",
        _in(4, "a1", crashes=1),
        Edit(_INIT_PRODUCER_ID, "if metadata.state is not ONGOING:", "if True:"),
    ),
    _mutant(
        "broker-add-while-ending",
        "a partition joins no transaction that is being ended",
        _in(3, "a1,a2/b1"),
        Edit(
            _TRANSACTIONS_COORDINATOR,
            (
                "if is_pending or metadata.state in PREPARE_STATES:\n"
                "        return CoordinatorDecision(ErrorCode.concurrent_transactions)"
            ),
            "if metadata.state in PREPARE_STATES:\n        return CoordinatorDecision(NO_ERROR)",
        ),
        Edit(_TRANSACTIONS_COORDINATOR, "if is_pending and rules.pending_checked_before_identity:", "if False:"),
    ),
    _mutant(
        "broker-verify-nothing",
        "KIP-890: a batch is verified",
        _in(4, "x1,a2", is_plain=True, give_ups=1),
        Edit(
            _TRANSACTIONS_COORDINATOR,
            "partition: NO_ERROR if partition in known else ErrorCode.transaction_abortable",
            "partition: NO_ERROR",
        ),
    ),
    _mutant(
        "broker-verify-epoch",
        "KIP-890: the epoch of a batch is verified",
        _in(4, "x1,a2", is_plain=True, give_ups=1),
        Edit(
            _TRANSACTIONS_COORDINATOR,
            "error = ErrorCode.invalid_producer_id_mapping if metadata is None else _writer_error(metadata, writer)",
            "error = ErrorCode.invalid_producer_id_mapping if metadata is None else NO_ERROR",
        ),
    ),
    _mutant(
        "broker-retry-any-epoch",
        "KIP-939: only the pair that ended the transaction may repeat",
        _in(1, "a1,a2", losses=1),
        Edit(
            _TRANSACTIONS_COORDINATOR,
            "return pair == (ended_by, metadata.last_producer_epoch)",
            "return pair.producer_id == ended_by",
        ),
    ),
    _mutant(
        "broker-aborted-commit-replayed",
        "the commit of an aborted transaction is refused",
        _in(3, "a1,a2", timeouts=1),
        Edit(
            _TRANSACTIONS_COORDINATOR,
            "_S.COMPLETE_ABORT:  (_INVALID_STATE,  _LATE_COMMIT,",
            "_S.COMPLETE_ABORT:  (_INVALID_STATE,  _REPLAY,",
        ),
    ),
    # transitions
    _mutant(
        "broker-commit-aborts",
        "a commit commits",
        _in(3, "a1"),
        Edit(
            _TRANSITIONS,
            ("state = PREPARE_COMMIT if commit else PREPARE_ABORT\n    after = _after_decision_with_bump"),
            "state = PREPARE_ABORT\n    after = _after_decision_with_bump",
        ),
    ),
    # kafka log
    _mutant(
        "partition-no-dedupe",
        "a batch that was stored is not stored again",
        _in(3, "a1", losses=1),
        Edit(
            _KAFKA_LOG,
            "if (batch.sequence, len(batch.records)) == (request.sequence, len(request.records)):",
            "if False:",
        ),
        Edit(_KAFKA_LOG, "if request.sequence != expected and not may_be_any:", "if False:"),
    ),
    _mutant(
        "partition-no-epoch-fence",
        "a leader refuses an older epoch",
        _in(4, "a1", crashes=1),
        Edit(_KAFKA_LOG, "if epoch < newest_epoch(log, producer_id):", "if False:"),
    ),
    # kafka model
    _mutant(
        "partition-not-verified",
        "a leader refuses a batch outside of a transaction",
        _in(4, "x1,a2", is_plain=True, give_ups=1),
        Edit(
            _KAFKA_MODEL,
            (
                "return kafka, Produced(FENCED)\n"
                "    if code is not ErrorCode.none:\n"
                "        return kafka, Produced(code.value)"
            ),
            "pass",
        ),
    ),
    # kafka log
    _mutant(
        "partition-abort-commits",
        "an abort marker aborts",
        _in(3, "a1", crashes=1),
        Edit(_KAFKA_LOG, "Marker(end_offset(log), *pair, marker.committed,", "Marker(end_offset(log), *pair, True,"),
    ),
    _mutant(
        "partition-no-marker",
        "every partition gets its marker",
        _in(3, "a1"),
        Edit(
            _KAFKA_LOG,
            "return (*log, Marker(end_offset(log), *pair, marker.committed, marker.coordinator_epoch)), ErrorCode.none",
            "return log, ErrorCode.none",
        ),
    ),
    # outbox
    _mutant(
        "outbox-without-lock",
        "one publisher at a time has the row's lock",
        OutboxSpace(1, Budget(lapses=1), publishers=2),
        Edit(_WORLD, "return not any(txn.is_locked for txn in world.txns)", "return True"),
    ),
    _mutant(
        "outbox-deleted-before",
        "the commit that decides deletes the published blocks",
        OutboxSpace(1, Budget(crashes=1)),
        Edit(
            _PUBLISHING,
            "await self._blocks.publish(write, waiting)",
            (
                "write.database = await owned.database.begin()\n"
                "            try:\n"
                "                await self._blocks.publish(write, waiting)\n"
                "                await write.database.commit()\n"
                "            finally:\n"
                "                await write.database.rollback()\n"
                "                write.database = database"
            ),
        ),
    ),
    _mutant(
        "outbox-deleted-after",
        "the commit that decides deletes the published blocks",
        OutboxSpace(1, Budget(crashes=1)),
        Edit(_PUBLISHING, "await self._blocks.publish(write, waiting)", "pass"),
        Edit(
            _PUBLISHING,
            "self._blocks.note_published(waiting)",
            (
                "write.database = await owned.database.begin()\n"
                "        await self._blocks.publish(write, waiting)\n"
                "        await write.database.commit()\n"
                "        self._blocks.note_published(waiting)"
            ),
        ),
    ),
    _mutant(
        "outbox-not-noted",
        "blocks that are deleted are noted",
        OutboxSpace(1, Budget(losses=1)),
        Edit(_OUTBOX_STATEMENTS, "FROM gone HAVING count(*) > 0)", "FROM gone HAVING false)"),
    ),
    _mutant(
        "outbox-forgotten-unsaid",
        "deleting notes records the highest block number in them",
        OutboxSpace(1, Budget(losses=1), ((b"a1",), (b"b1",))),
        Edit(_OUTBOX_STEPS, '> {PUBLISHED_KEPT_MS}"', '>= 0"'),
        Edit(
            _OUTBOX_STATEMENTS,
            "CAST(:state AS varchar), (SELECT max(up_to) FROM forgotten))",
            "CAST(:state AS varchar), NULL)",
        ),
    ),
    _mutant(
        "outbox-old-is-rolled-back",
        "once notes of later blocks are deleted, that a block is not noted proves nothing",
        OutboxSpace(1, Budget(losses=1, hours=1), ((b"a1",), (b"b1",))),
        Edit(_OUTBOX_STEPS, "if not is_there and added.seq <= forgotten:", "if False:"),
    ),
    _mutant(
        "outbox-resolved-in-progress",
        "the outcome of a lost COMMIT is read when its transaction has ended",
        OutboxSpace(1, Budget(losses=1)),
        Edit(
            _OUTBOX_STEPS,
            ("        if not await self._has_ended(transactional_id, added.seq):\n            return None\n"),
            "",
        ),
    ),
    _mutant(
        "outbox-in-progress-is-rolled-back",
        "a block that is still being added has no outcome",
        OutboxSpace(1, Budget(losses=1)),
        Edit(_OUTBOX, "            if committed is None:\n                return False\n", ""),
    ),
    _mutant(
        "outbox-asked-afterwards",
        "whether the transaction has ended is asked before the outbox is read",
        OutboxSpace(1, Budget(losses=1)),
        Edit(
            _OUTBOX_STEPS,
            ("        if not await self._has_ended(transactional_id, added.seq):\n            return None\n"),
            "",
        ),
        Edit(
            _OUTBOX_STEPS,
            "self._statements.rows(self._sql.evidence, values)",
            (
                "self._statements.rows(self._sql.evidence, values)\n"
                "        if not await self._has_ended(transactional_id, added.seq):\n"
                "            return None"
            ),
        ),
    ),
    _mutant(
        "outbox-newest-first",
        "blocks are published in the order of their numbers",
        OutboxSpace(1, Budget(), ((b"a1", b"a2"),)),
        Edit(_OUTBOX_STATEMENTS, 'AS oldest) AS summed ORDER BY seq"', 'AS oldest) AS summed ORDER BY seq DESC"'),
    ),
    _mutant(
        "outbox-not-kept",
        "the last batch is kept where a broker may abort it",
        OutboxSpace(3, Budget(timeouts=1, deletions=1)),
        Edit(_STORED_BLOCKS, "return self._owned.is_outbox and write.bounded_ms is not None", "return False"),
    ),
    _mutant(
        "outbox-deleted-undecided",
        "the last batch is deleted once its end is known",
        OutboxSpace(3, Budget(timeouts=1, deletions=1)),
        Edit(
            _COMPLETION,
            "proof = await prove(owned, database, row, text, ongoing)",
            (
                "other = await owned.database.begin()\n"
                "        outbox = other.stored_blocks(owned.transactional_id)\n"
                "        await outbox.publish(owned.transactional_id, ())\n"
                "        await other.commit()\n"
                "        proof = await prove(owned, database, row, text, ongoing)"
            ),
        ),
    ),
    _mutant(
        "outbox-last-batch-waits",
        "the last batch is not taken for blocks that wait",
        OutboxSpace(3, Budget(), ((b"a1", b"a2"),), rounds=2, are_large=True),
        Edit(_OUTBOX_STEPS, '{OF_ID} AND seq > 0 AND seq NOT IN ({self.numbers})"', '{OF_ID} AND seq > 0"'),
    ),
    _mutant(
        "outbox-last-batch-left",
        "the next batch deletes the last one",
        OutboxSpace(3, Budget(), ((b"a1", b"a2"),), rounds=2, are_large=True),
        Edit(_OUTBOX_STATEMENTS, "ARRAY({OF_POSTGRES.numbers} UNION ALL SELECT", "ARRAY(SELECT"),
    ),
    _mutant(
        "outbox-owed-not-kept",
        "owed records are kept with the batch that publishes them",
        OutboxSpace(3, Budget(timeouts=2), is_readable=False),
        Edit(_STORED_BLOCKS, "blocks = (first, *blocks)", "pass"),
    ),
    _mutant(
        "outbox-not-proven-goes-on",
        "an unproven batch is not taken for committed",
        OutboxSpace(4, Budget(timeouts=1, deletions=1)),
        Edit(_COMPLETION, "if proof.not_proven is not None:", "if False:"),
        Edit(_COMPLETION, "is_over=proof.is_over)", "is_over=True)"),
    ),
    _mutant(
        "outbox-verdict-not-noted",
        "the row notes how the last batch has ended before the coordinator forgets it",
        OutboxSpace(3, Budget(crashes=1, timeouts=1), is_readable=False),
        Edit(_LAST_BATCH, "if proof.verdict is None or not is_wanted:", "if True:"),
    ),
    _mutant(
        "outbox-batch-not-settled",
        "a batch of which the log tells nothing is settled before the next one",
        OutboxSpace(3, Budget(crashes=1), ((b"a1", b"a2"),), are_large=True, is_readable=False),
        Edit(_PUBLISHING, "if await self._steps.log_will_tell():", "if True:"),
    ),
    _mutant(
        "outbox-not-durable",
        "a block of a lost COMMIT is made durable before its caller is told",
        OutboxSpace(1, Budget(failovers=1, losses=1)),
        Edit(
            _OUTBOX,
            "await self.database.make_durable(self.transactional_id, row, timeout_ms=self._resolve_timeout_ms)",
            "pass",
        ),
    ),
    _mutant(
        "outbox-lock-not-read-again",
        "the outcome is read again after it was made durable",
        OutboxSpace(1, Budget(failovers=1, losses=1)),
        Edit(
            _OUTBOX,
            "await database.read(self.transactional_id)  # fails if a standby has taken over since the lock",
            "pass",
        ),
    ),
    _mutant(
        "outbox-number-alone",
        "a number that a server gives twice is not taken for the other block",
        OutboxSpace(1, Budget(failovers=1, losses=1), ((b"a1",), (b"b1", b"b2"))),
        Edit(_OUTBOX_STATEMENTS, "hashint8extended(seq, stored_at_ms) AS block", "hashint8extended(seq, 0) AS block"),
        Edit(
            _OUTBOX_STATEMENTS,
            "hashint8extended({_BLOCK}, CAST(:stored_at AS bigint))",
            "hashint8extended({_BLOCK}, 0)",
        ),
    ),
    # a pool that goes both ways
    _mutant(
        "diverted-not-looked",
        "a block that has locked its rows looks whether blocks of the pool wait in the outbox",
        _BOTH_WAYS,
        Edit(_POOL_COORDINATOR, "or await self._outbox.writes.follows_diverted(write):", "or False:"),
    ),
    _mutant(
        "diverted-without-hold",
        "a block that adds its records keeps the diversion from ending",
        _BACK,
        Edit(_DIVERSION_STATEMENTS, " FOR SHARE SKIP LOCKED", ""),
    ),
    _mutant(
        "diversion-not-begun",
        "the first block in the outbox begins the diversion",
        _BOTH_WAYS,
        Edit(
            _DIVERSION_STATEMENTS,
            "SET stored_at_ms = :now WHERE {_OF_ROW} AND stored_at_ms = 0",
            "SET stored_at_ms = 0 WHERE {_OF_ROW} AND stored_at_ms = 0",
        ),
    ),
    _mutant(
        "diversion-ended-unlocked",
        "the publisher waits for the blocks that hold the diversion before it looks for the last time",
        _BACK,
        Edit(_DIVERSION_STATEMENTS, 'LOCKED",\n        f"{_SELECT} FOR UPDATE",', 'LOCKED",\n        _SELECT,'),
    ),
    _mutant(
        "diversion-ended-too-early",
        "the publisher ends the diversion only if no block waits",
        _BACK,
        Edit(_PUBLISHING, "if newest_seq:", "if False:"),
    ),
    _mutant(
        "diversion-ended-while-held",
        "the publisher does not end a diversion that a block holds for too long",
        _BACK._replace(budget=Budget(give_ups=1)),
        Edit(_PUBLISHING, "self._asks_not_before_s\n            return False", "self._asks_not_before_s"),
    ),
    _mutant(
        "outbox-steps-not-noted",
        "blocks that are deleted are noted, in steps",
        OutboxSpace(1, Budget(losses=1), in_steps=True),
        Edit(_OUTBOX_ELSEWHERE, "await self._statements.changed(self._in_steps.note, note)", "pass"),
    ),
    _mutant(
        "outbox-steps-any-note",
        "a note of other blocks says nothing about this one, in steps",
        OutboxSpace(1, Budget(losses=1), ((b"a1",), (b"b1",)), in_steps=True),
        Edit(_OUTBOX_ELSEWHERE, "f'%\"{token_of(added.content)}\"%'", '"%"'),
    ),
    _mutant(
        "outbox-steps-forgotten-unsaid",
        "deleting notes records the highest block number in them, in steps",
        OutboxSpace(1, Budget(losses=1), ((b"a1",), (b"b1",)), in_steps=True),
        Edit(_OUTBOX_STEPS, '> {PUBLISHED_KEPT_MS}"', '>= 0"'),
        Edit(_OUTBOX_ELSEWHERE, "return max((-seq for seq in old), default=0)", "return 0"),
    ),
    _mutant(
        "outbox-steps-last-batch-left",
        "the next batch deletes the last one, in steps",
        OutboxSpace(3, Budget(), ((b"a1", b"a2"),), rounds=2, are_large=True, in_steps=True),
        Edit(
            _OUTBOX_ELSEWHERE,
            'published = {seq: token_of(bytes(content or b"")) for seq, content in last}',
            "published: dict[int, str] = {}",
        ),
    ),
    _mutant(
        "outbox-steps-newest-first",
        "blocks are published in the order of their numbers, in steps",
        OutboxSpace(1, Budget(), ((b"a1", b"a2"),), in_steps=True),
        Edit(_OUTBOX_ELSEWHERE, 'AND seq <= :last ORDER BY seq"', 'AND seq <= :last ORDER BY seq DESC"'),
    ),
)
