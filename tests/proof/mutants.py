"""Mistakes that the search has to find: the proof that it would see a mistake if there were one.

`python -m tests.proof.kill_mutants` plants each of them in a copy of the code, and searches the space in which the
smallest story was found. A mistake that is not seen in any space is either among `EQUIVALENTS`, with the reason, or a
hole in the checks of the search.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.proof.outbox_world import OutboxSpace
from tests.proof.producers import ProducerSpace
from tests.proof.spaces import Space, both_ways
from tests.proof.world import Budget

_CORE: Final = "dualwrite/recipes/core/"
_CLIENT: Final = "dualwrite/client/transactions/"
_LOG: Final = "dualwrite/client/log/"
_BROKER: Final = "dualwrite/broker_emulator/transactions/"
_PROOF: Final = "tests/proof/"
_POOL: Final = "dualwrite/recipes/pool/"
_SQL: Final = "dualwrite/recipes/sql/"


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


class Equivalent(NamedTuple):
    """A mistake that no history of this world shows."""

    name: str
    why: str


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
    """Return a space of producers without a lock; `ends` as for `python -m tests.proof.producers`."""
    return ProducerSpace(tier, tuple(tuple(process.split(",")) for process in ends.split("/")))


MUTANTS: Final = (
    # durability, restores and operators
    Mutant(
        "make-durable-left-out",
        "a take-over makes the row durable before Kafka is told",
        _in(1, "a1/b1", failovers=1, losses=1),
        (Edit(f"{_CORE}completion.py", "        await owned.make_durable(row, ongoing)\n", ""),),
    ),
    Mutant(
        "lost-commit-not-durable",
        "the outcome of a lost COMMIT is made durable before Kafka is told",
        _in(1, "a1", failovers=1, losses=1),
        (
            Edit(
                f"{_CORE}completion.py",
                "            await self._make_durable_or_stay_unresolved(write, ours)\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "repaired-not-looked-for",
        "records that were published again are not published once more for a restored database",
        _in(3, "a1,a2", restores=1, timeouts=1),
        (
            Edit(
                f"{_CORE}repair.py",
                "            await _assert_not_repaired(owned, database, manifest, end, ongoing)",
                "            pass",
            ),
        ),
    ),
    Mutant(
        "later-commit-ignored",
        "a take-over reports a restored database when Kafka has committed a transaction later than the row's",
        _in(3, "a1,a2,a3", by_commit=True, restores=1),
        (
            Edit(
                f"{_CORE}completion.py",
                "        if not proof.owed and owned.kafka.coordinator_committed_later(row):",
                "        if False:",
            ),
        ),
    ),
    Mutant(
        "restored-row-taken-for-a-successor",
        "a writer reports a restored database when its row has changed and no other process has used its id",
        _in(1, "a1,a2,a3", by_commit=True, restores=1),
        (Edit(f"{_CORE}completion.py", "    if is_current:\n", "    if False:\n"),),
    ),
    Mutant(
        "committed-not-verified",
        "a commit that the coordinator confirms is looked up in the log",
        _in(1, "a1", aborts=1),
        (Edit(f"{_CORE}completion.py", "        if proof.is_known:\n", "        if False:\n"),),
    ),
    # completion
    Mutant(
        "no-reading-after-completion",
        "the third and the fourth reading",
        _in(3, "a1,a2/b1", kills=2),
        (
            Edit(
                f"{_CORE}completion.py",
                (
                    "        owned.telemetry.reach(PausePoint.AFTER_COMPLETION)\n"
                    "        await _assert_still_locked(owned, database, row)\n"
                ),
                "        owned.telemetry.reach(PausePoint.AFTER_COMPLETION)\n",
            ),
            Edit(
                f"{_CORE}completion.py",
                (
                    "        owned.telemetry.reach(PausePoint.AFTER_TAKEOVER)\n"
                    "        await _assert_still_locked(owned, database, row)\n"
                ),
                "        owned.telemetry.reach(PausePoint.AFTER_TAKEOVER)\n",
            ),
        ),
    ),
    Mutant(
        "row-read-once",
        "the second reading: the row is read only before the id is initialised",
        _in(3, "a1/b1", kills=1),
        (
            Edit(
                f"{_CORE}completion.py",
                "        row = await database.read(owned.transactional_id)\n        if ongoing",
                "        row = owned.read_before\n        if ongoing",
            ),
            Edit(
                f"{_CORE}steps.py",
                (
                    "        owned.telemetry.reach(PausePoint.AFTER_LOCK)\n"
                    "        if self._slot.known.state is SlotState.UNRESOLVED"
                ),
                ("        owned.read_before = row\n        if self._slot.known.state is SlotState.UNRESOLVED"),
            ),
            Edit(
                f"{_CORE}publishing.py",
                "            owned.telemetry.reach(PausePoint.AFTER_LOCK)\n            if examine",
                "            owned.read_before = row\n            if examine",
            ),
        ),
    ),
    Mutant(
        "remembered-row",
        "the row is read at all at a take-over",
        _in(1, "a1"),
        (
            Edit(
                f"{_CORE}completion.py",
                ("        row = await database.read(owned.transactional_id)\n        if ongoing"),
                "        row = owned.row\n        if ongoing",
            ),
        ),
    ),
    Mutant(
        "no-proof",
        "the log is asked where the coordinator cannot tell",
        _in(4, "a1", crashes=1),
        (
            Edit(f"{_CORE}completion.py", "proof = await prove(owned, database, row, ongoing)", "proof = KNOWN"),
            Edit(f"{_CORE}completion.py", "proof import Proof", "proof import KNOWN, Proof"),
        ),
    ),
    Mutant(
        "nothing-completed",
        "a take-over completes the transaction in doubt",
        _in(1, "a1", crashes=1),
        (
            Edit(
                f"{_CORE}completion.py",
                "        await _complete(owned, database, row, proof, again=again)\n",
                "        pass\n",
            ),
        ),
    ),
    Mutant(
        "never-over",
        "the log's proof outweighs the coordinator",
        _in(4, "a1", crashes=1),
        (Edit(f"{_CORE}completion.py", "is_over=proof.is_over)", "is_over=False)"),),
    ),
    Mutant(
        "not-owned",
        "the second phase of a take-over fences",
        _in(3, "a1"),
        (Edit(f"{_CORE}completion.py", "        await owned.kafka.own()\n", "        pass\n"),),
    ),
    Mutant(
        "owed-forgotten",
        "records that the log shows as aborted are owed",
        _in(4, "a1", crashes=1),
        (Edit(f"{_CORE}completion.py", "owed=proof.owed", "owed=()"),),
    ),
    Mutant(
        "row-not-remembered",
        "a take-over remembers the row",
        _in(1, "a1", crashes=1),
        (Edit(f"{_CORE}completion.py", "row=row, owed=proof.owed", "owed=proof.owed"),),
    ),
    Mutant(
        "aborted-meanwhile",
        "an abort between the description and the commit is repaired",
        _in(3, "a1/b1", timeouts=1),
        (Edit(f"{_CORE}completion.py", "if proof.is_known and not again:", "if False:"),),
    ),
    Mutant(
        "went-back-falsely",
        "a row that another process has changed is no restored database",
        _in(1, "a1,a2/b1"),
        (Edit(f"{_CORE}completion.py", "    if is_current:", "    if True:"),),
    ),
    Mutant(
        "evidence-without-lock",
        "the outcome of a lost COMMIT is read under the lock",
        _in(1, "a1", losses=1),
        (
            Edit(
                f"{_CORE}completion.py",
                "return await database.lock(owned.transactional_id, timeout_ms=timeout_ms)",
                "return await database.read(owned.transactional_id)",
            ),
        ),
    ),
    Mutant(
        "resolve-forgets-outcome",
        "a lost COMMIT that took effect commits Kafka",
        _in(1, "a1,a2", losses=1),
        (
            Edit(
                f"{_CORE}completion.py",
                "            await owned.complete_kafka(ours, outcome)\n        finally",
                ("            await owned.complete_kafka(ours, Outcome.ROLLED_BACK)\n        finally"),
            ),
        ),
    ),
    # decisions
    Mutant(
        "ours-means-rolled-back",
        "the row decides a lost COMMIT: ours",
        _in(1, "a1", losses=1),
        (
            Edit(
                "dualwrite/decisions/by_row.py",
                "    if row == ours:\n        return Outcome.COMMITTED",
                "    if row == ours:\n        return Outcome.ROLLED_BACK",
            ),
        ),
    ),
    Mutant(
        "previous-means-superseded",
        "the row decides a lost COMMIT: the previous row",
        _in(1, "a1", kills=1),
        (Edit("dualwrite/decisions/by_row.py", "if row == previous:", "if row == previous and False:"),),
    ),
    Mutant(
        "superseded-means-rolled-back",
        "a replaced row does not tell the outcome",
        _in(1, "a1/b1", losses=1),
        (Edit("dualwrite/decisions/by_row.py", "    if row == previous:", "    if row != ours:"),),
    ),
    # steps
    Mutant(
        "ready-row-not-compared",
        "the row of a READY id is compared",
        _in(4, "a1,a2/b1"),
        (
            Edit(
                f"{_CORE}steps.py",
                "            if row == known.row:\n                return row",
                "            return row",
            ),
        ),
    ),
    Mutant(
        "kafka-first",
        "the database commits before Kafka",
        _in(1, "a1"),
        (
            Edit(
                f"{_CORE}steps.py",
                (
                    "            await write.database.commit()\n"
                    "        except BaseException as error:\n"
                    "            await self.after"
                ),
                (
                    "            await self._owned.kafka.commit()\n"
                    "            await write.database.commit()\n"
                    "        except BaseException as error:\n"
                    "            await self.after"
                ),
            ),
        ),
    ),
    Mutant(
        "commit-without-prepare",
        "the records are stored before the decision",
        _in(4, "a1"),
        (
            Edit(
                f"{_CORE}steps.py",
                "write.prepared_state = await kafka.prepare()",
                "write.prepared_state = kafka._live.next_prepared_state  # type: ignore[attr-defined]",
            ),
        ),
    ),
    Mutant(
        "kafka-never-commits",
        "Kafka follows the decision",
        _in(1, "a1"),
        (
            Edit(
                f"{_CORE}steps.py",
                "            await owned.complete_kafka(ours, Outcome.COMMITTED)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "owed-not-sent",
        "owed records are sent with the next dual write",
        _in(4, "a1", crashes=1),
        (Edit(f"{_CORE}steps.py", "await kafka.send((*owed, *ahead)", "await kafka.send((*ahead,)"),),
    ),
    Mutant(
        "owed-sent-last",
        "owed records go first",
        _in(3, "a1/b1", timeouts=1),
        (
            Edit(
                f"{_CORE}steps.py",
                (
                    "                await kafka.send((*owed, *ahead), sent, any_size=True)\n"
                    "            await kafka.send(write.records, sent)\n"
                ),
                (
                    "                pass\n"
                    "            await kafka.send(write.records, sent)\n"
                    "            await kafka.send((*owed, *ahead), sent, any_size=True)\n"
                ),
            ),
        ),
    ),
    Mutant(
        "manifest-not-written",
        "the manifest is stored with the state",
        _in(4, "a1", crashes=1),
        (
            Edit(
                f"{_CORE}steps.py",
                "previous=previous, new=new, manifest=owned.manifest)",
                'previous=previous, new=new, manifest="")',
            ),
        ),
    ),
    Mutant(
        "state-not-written",
        "the state is stored with the decision",
        _in(1, "a1,a2"),
        (
            Edit(
                f"{_CORE}steps.py",
                (
                    "        await write.database.write("
                    "owned.transactional_id, previous=previous, new=new, manifest=owned.manifest)\n"
                ),
                "",
            ),
        ),
    ),
    Mutant(
        "no-open-rollback",
        "a rollback aborts in Kafka too",
        _in(1, "a1", kills=1),
        (
            Edit(
                f"{_CORE}steps.py",
                "self._slot.state in (SlotState.OPEN, SlotState.DECIDING)",
                "self._slot.state in (SlotState.DECIDING,)",
            ),
        ),
    ),
    Mutant(
        "sent-commit-rolled-back",
        "a COMMIT that was sent is not rolled back by guess",
        _in(1, "a1", losses=1),
        (Edit(f"{_CORE}steps.py", "if not write.database.commit_was_sent:", "if True:"),),
    ),
    Mutant(
        "lost-commit-committed",
        "a COMMIT without a response is no decision yet",
        _in(1, "a1", kills=1),
        (
            Edit(
                f"{_CORE}steps.py",
                "        self._lost_commits.begin(write)\n",
                ("        return await self._after_commit(write)\n        self._lost_commits.begin(write)\n"),
            ),
        ),
    ),
    Mutant(
        "rolled-back-not-raised",
        "the caller hears that a lost COMMIT was rolled back",
        _in(1, "a1", kills=1),
        (
            Edit(
                f"{_CORE}steps.py",
                "        if outcome is Outcome.ROLLED_BACK:\n            raise error",
                "        if False:\n            raise error",
            ),
        ),
    ),
    # owned id
    Mutant(
        "ready-with-old-row",
        "a committed dual write is remembered as the row",
        _in(1, "a1,a2"),
        (
            Edit(
                f"{_CORE}owned_id.py",
                "            row = state if outcome is Outcome.COMMITTED else None",
                "            row = None",
            ),
        ),
    ),
    # take over
    Mutant(
        "failed-producer-goes-on",
        ("the producer whose commit another process completed refuses every later call (found by the search)"),
        _in(1, "a1,a2/b1", kills=1),
        (
            Edit(
                f"{_CLIENT}take_over.py",
                "            if by_another is None or context.transaction.leaves_id:",
                "            if True:",
            ),
        ),
    ),
    # owned id
    Mutant(
        "owed-rolled-back",
        "owed records stay owed after a rollback",
        _in(4, "a1,a2", timeouts=1, kills=1),
        (
            Edit(
                f"{_CORE}owned_id.py",
                (
                    "                await self.leave_in_doubt(self.row)  # the row stays as it is, "
                    "and so do the owed records\n"
                    "                return"
                ),
                "                self.slot.note(owed=())",
            ),
        ),
    ),
    Mutant(
        "owed-twice",
        "records that were published again are owed no more",
        _in(3, "a1,a2/b1", timeouts=1),
        (
            Edit(
                f"{_CORE}owned_id.py",
                "        self.slot.note(owed=())",
                "        pass",
            ),
        ),
    ),
    Mutant(
        "aborted-pair-kept",
        "the pair that an abort returns may be another process's, so the producer is given up",
        _in(3, "a1,a2,a3/b1", kills=2),
        (
            Edit(
                f"{_CORE}owned_id.py",
                "        return self.kafka.guarantee.tier is not Tier.KEEP_PREPARED",
                "        return False",
            ),
        ),
    ),
    Mutant(
        "commit-and-abort-swapped",
        "Kafka follows the outcome",
        _in(1, "a1"),
        (
            Edit(
                f"{_CORE}owned_id.py",
                (
                    "            if outcome is Outcome.COMMITTED:\n"
                    "                await self.kafka.commit()\n"
                    "            else:\n"
                    "                await self.kafka.abort()"
                ),
                (
                    "            if outcome is not Outcome.COMMITTED:\n"
                    "                await self.kafka.commit()\n"
                    "            else:\n"
                    "                await self.kafka.abort()"
                ),
            ),
        ),
    ),
    Mutant(
        "fenced-is-ready",
        "a fenced producer is given up",
        _in(1, "a1,a2", losses=1),
        (
            Edit(
                f"{_CORE}owned_id.py",
                "            self.slot.move(SlotState.FENCED, in_doubt=",
                "            self.slot.move(SlotState.READY, in_doubt=",
            ),
        ),
    ),
    # publishing
    Mutant(
        "owed-settled",
        "recover() publishes the owed records",
        _in(4, "a1", crashes=1),
        (
            Edit(
                f"{_CORE}publishing.py",
                (
                    "            row, resolution = await take_over(owned, database)\n"
                    "            waiting = await self._blocks.oldest(database)\n"
                    "            if owned.owed or waiting.blocks:"
                ),
                (
                    "            row, resolution = await take_over(owned, database)\n"
                    "            waiting = await self._blocks.oldest(database)\n"
                    "            if waiting.blocks:"
                ),
            ),
        ),
    ),
    Mutant(
        "recover-without-takeover",
        "recover() takes the id over",
        _in(1, "a1", crashes=1),
        (
            Edit(
                f"{_CORE}publishing.py",
                "            row, resolution = await take_over(owned, database)\n",
                ("            resolution = Resolution(owned.transactional_id, NOTHING_PREPARED, Outcome.NOTHING)\n"),
            ),
        ),
    ),
    Mutant(
        "settled-unconfirmed",
        "a row is settled only when Kafka has confirmed",
        _in(3, "a1", timeouts=2, give_ups=1),
        (
            Edit(
                f"{_CORE}publishing.py",
                ("        if self._slot.state is not SlotState.READY:\n            return\n        expected"),
                "        expected",
            ),
            Edit(
                f"{_CORE}publishing.py",
                "            if row == owned.row:\n                if (await verify",
                "            if True:\n                if False and (await verify",
            ),
        ),
    ),
    Mutant(
        "unconfirmed-not-said",
        "recover() says so if Kafka has not confirmed its records",
        _in(3, "a1", crashes=1, timeouts=1, give_ups=1),
        (
            Edit(
                f"{_CORE}publishing.py",
                "                await self._settle_last()\n            self._assert_confirmed()\n",
                "                await self._settle_last()\n",
            ),
        ),
    ),
    # repair
    Mutant(
        "coordinator-always-knows",
        "the log is asked where the coordinator cannot tell",
        _in(1, "a1", foreigners=1),
        (Edit(f"{_CORE}repair.py", "    if owned.kafka.coordinator_knows(row):", "    if True:"),),
    ),
    Mutant(
        "abort-not-seen",
        "an abort in the log is repaired",
        _in(3, "a1", timeouts=1),
        (
            Edit(
                f"{_CORE}repair.py", "    if end.aborted:\n        return await", "    if False:\n        return await"
            ),
        ),
    ),
    Mutant(
        "commit-not-seen",
        "a commit in the log is a commit, whatever the coordinator says",
        _in(4, "a1,a2", crashes=1, losses=1),
        (Edit(f"{_CORE}repair.py", "    if end.committed:\n", "    if False:\n"),),
    ),
    Mutant(
        "not-aborted-is-committed",
        "abort and commit in the log",
        _in(4, "a1", crashes=1),
        (
            Edit(
                f"{_CORE}repair.py",
                "    if end.aborted:\n        return await",
                "    if not end.aborted:\n        return await",
            ),
        ),
    ),
    Mutant(
        "one-record-repaired",
        "all records of an aborted transaction are published again",
        _in(3, "a1/b1", timeouts=2),
        (
            Edit(
                f"{_CORE}repair.py",
                "manifest, end.aborted, owned.resolve_timeout_ms)]",
                "manifest, end.aborted, owned.resolve_timeout_ms)][:1]",
            ),
        ),
    ),
    Mutant(
        "hanging-not-asked-again",
        "the coordinator is asked before a marker is called missing",
        _in(1, "a1", crashes=1, give_ups=2),
        (Edit(f"{_CORE}repair.py", "        await owned.kafka.is_current()", "        pass"),),
    ),
    Mutant(
        "ending-is-hanging",
        "a marker that is under way is not missing",
        _in(3, "a1", crashes=1, timeouts=1, give_ups=1),
        (
            Edit(
                f"{_CORE}repair.py",
                "        if owned.kafka.coordinator_is_ending:\n            raise",
                "        if False:\n            raise",
            ),
        ),
    ),
    # open transaction
    Mutant(
        "manifest-one-short",
        "the manifest counts every record",
        _in(3, "a1/b1", timeouts=2),
        (Edit(f"{_CLIENT}open_transaction.py", "stored[2] += record_count", "stored[2] += 0"),),
    ),
    Mutant(
        "manifest-kept",
        "the manifest of one transaction does not reach the next",
        _in(3, "a1,a2", timeouts=1),
        (
            Edit(
                f"{_CLIENT}open_transaction.py",
                ("        self.are_known = True\n        if self._ranges:\n            self._ranges.clear()"),
                "        pass",
            ),
        ),
    ),
    # transaction end
    Mutant(
        "end-mistaken",
        "aborted and committed partitions",
        _in(3, "a1", timeouts=1),
        (
            Edit(
                f"{_LOG}transaction_end.py",
                "        return self._those(PartitionEnd.ABORTED)",
                "        return self._those(PartitionEnd.COMMITTED)",
            ),
        ),
    ),
    Mutant(
        "end-never-committed",
        "a committed partition",
        _in(4, "a1,a2", crashes=1, losses=1),
        (
            Edit(
                f"{_LOG}transaction_end.py",
                "return PartitionEnd.COMMITTED in self.by_partition.values() and not self.aborted",
                "return False",
            ),
        ),
    ),
    Mutant(
        "settled-unverified",
        "recover() finds its records committed in the log before it settles the row",
        _in(3, "a1", timeouts=1, aborts=1),
        (
            Edit(
                f"{_CORE}publishing.py",
                "                if (await verify(owned, database, row)).owed:",
                "                if False and (await verify(owned, database, row)).owed:",
            ),
        ),
    ),
    Mutant(
        "torn-inside-is-committed",
        "the first records of a partition may be aborted where the last one is committed",
        _in(3, "a1/b1", timeouts=1, aborts=1),
        (
            Edit(
                f"{_PROOF}kafka_log.py",
                'return _committed_in_part(log, request) if entry.committed else "ABORTED"',
                'return "COMMITTED" if entry.committed else "ABORTED"',
            ),
        ),
    ),
    # recovery
    Mutant(
        "open-taken-for-other",
        "FINDINGS: the open transaction is the stored one",
        _in(3, "a1", crashes=1),
        (Edit(f"{_CLIENT}recovery.py", "(_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3", "(_F.OTHER_OPEN,) * 5"),),
    ),
    Mutant(
        "next-open-taken-for-stored",
        "FINDINGS: a later open transaction is not the stored one",
        _in(3, "a1,a2", crashes=1),
        (
            Edit(
                f"{_CLIENT}recovery.py",
                "(_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3",
                "(_F.OTHER_OPEN, _F.OPEN, _F.OPEN, _F.OTHER_OPEN, _F.OTHER_OPEN)",
            ),
        ),
    ),
    Mutant(
        "further-open-taken-for-stored",
        "FINDINGS: an open transaction two epochs later is not the stored one",
        _in(4, "a1,a2", crashes=1),
        (
            Edit(
                f"{_CLIENT}recovery.py",
                "(_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3",
                "(_F.OTHER_OPEN, _F.OPEN, _F.OTHER_OPEN, _F.OTHER_OPEN, _F.OPEN)",
            ),
        ),
    ),
    Mutant(
        "nothing-stored-commits",
        "FINDINGS: with nothing stored, nothing is committed",
        _in(3, "a1", crashes=1),
        (
            Edit(
                f"{_CLIENT}recovery.py",
                "(_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3",
                "(_F.OPEN,) * 2 + (_F.OTHER_OPEN,) * 3",
            ),
        ),
    ),
    Mutant(
        "other-pid-commits",
        "FINDINGS: an open transaction of another producer id is not the stored one",
        _in(3, "a1/b1", crashes=1, expiries=1),
        (Edit(f"{_CLIENT}recovery.py", "+ (_F.VANISHED, _F.OTHER_OPEN),", "+ (_F.VANISHED, _F.OPEN),"),),
    ),
    Mutant(
        "empty-is-aborted",
        "FINDINGS: an initialised id tells nothing",
        _in(3, "a1", crashes=1),
        (
            Edit(
                f"{_CLIENT}recovery.py",
                "DescribedState.EMPTY: (_F.NO_TRACE,) * 5",
                "DescribedState.EMPTY: (_F.ABORTED,) * 5",
            ),
        ),
    ),
    Mutant(
        "open-is-taken-over",
        "RECOVERIES: the stored transaction is committed",
        _in(3, "a1", crashes=1),
        (Edit(f"{_CLIENT}recovery.py", "Finding.OPEN: Recovery.COMMIT", "Finding.OPEN: Recovery.TAKE_OVER"),),
    ),
    Mutant(
        "other-open-is-committed",
        "RECOVERIES: another transaction is aborted",
        _in(3, "a1", crashes=1),
        (
            Edit(
                f"{_CLIENT}recovery.py", "Finding.OTHER_OPEN: Recovery.TAKE_OVER", "Finding.OTHER_OPEN: Recovery.COMMIT"
            ),
        ),
    ),
    Mutant(
        "committed-is-committed-again",
        "RECOVERIES: a committed transaction is not committed again",
        _in(3, "a1", crashes=1),
        (Edit(f"{_CLIENT}recovery.py", "Finding.COMMITTED: Recovery.TAKE_OVER", "Finding.COMMITTED: Recovery.COMMIT"),),
    ),
    Mutant(
        "committed-is-lost",
        "RECOVERIES: a committed transaction is not lost",
        _in(3, "a1", crashes=1),
        (Edit(f"{_CLIENT}recovery.py", "Finding.COMMITTED: Recovery.TAKE_OVER", "Finding.COMMITTED: Recovery.LOST"),),
    ),
    Mutant(
        "no-trace-is-lost",
        "RECOVERIES: an id that tells nothing is taken over",
        _in(4, "a1", crashes=1),
        (Edit(f"{_CLIENT}recovery.py", "Finding.NO_TRACE: Recovery.TAKE_OVER", "Finding.NO_TRACE: Recovery.LOST"),),
    ),
    Mutant(
        "no-trace-is-committed",
        "RECOVERIES: an id that tells nothing commits nothing",
        _in(3, "a1"),
        (Edit(f"{_CLIENT}recovery.py", "Finding.NO_TRACE: Recovery.TAKE_OVER", "Finding.NO_TRACE: Recovery.COMMIT"),),
    ),
    Mutant(
        "relation-same-for-next",
        "the epoch after the stored one is another",
        _in(3, "a1,a2", crashes=1),
        (
            Edit(
                f"{_CLIENT}recovery.py",
                "return (Relation.SAME, Relation.NEXT)[ahead]",
                "return (Relation.SAME, Relation.SAME)[ahead]",
            ),
        ),
    ),
    Mutant(
        "overtaken-goes-on",
        "only the decided description or its own end is accepted",
        _in(3, "a1,a2/b1", kills=1),
        (
            Edit(
                f"{_CLIENT}recovery.py",
                ("        return SecondDescription.GO_ON\n    return SecondDescription.OVERTAKEN"),
                ("        return SecondDescription.GO_ON\n    return SecondDescription.GO_ON"),
            ),
        ),
    ),
    # initialisation
    Mutant(
        "open-is-claimed",
        "EndTxn by pair instead of InitProducerId",
        _in(3, "a1", crashes=1),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "            return Step.SPEND_PAIR, (self._second_of_v2(decided),)",
                "            return Step.CLAIM, (self._second_of_v2(decided),)",
            ),
        ),
    ),
    Mutant(
        "second-phase-by-pair",
        "version 1: the second phase fences every producer of the id, not only the pair that was described",
        _producers(4, "abort,abort/commit"),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "            return Step.CLAIM, (Step.TAKE_OVER,)",
                "            return Step.CLAIM, (Step.CLAIM,)",
            ),
        ),
    ),
    Mutant(
        "second-phase-spends-pair",
        "only a process that checks its lock between the phases ends the second one by pair",
        _producers(3, "abort,abort,commit/commit,commit"),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "        following = Step.SPEND_PAIR if self.is_checked_between else Step.TAKE_OVER",
                "        following = Step.SPEND_PAIR",
            ),
            Edit(
                f"{_CLIENT}initialisation.py",
                "        if not self.is_checked_between:\n            return Step.TAKE_OVER",
                "        if False:\n            return Step.TAKE_OVER",
            ),
        ),
    ),
    Mutant(
        "one-phase-v1",
        "version 1: the second phase",
        _producers(4, "abort,abort/commit"),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "            return Step.CLAIM, (Step.TAKE_OVER,)",
                "            return Step.CLAIM, ()",
            ),
        ),
    ),
    Mutant(
        "one-phase-open",
        "the second phase, after a transaction that was open",
        _producers(3, "abort,abort,commit/commit,commit"),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "            return Step.SPEND_PAIR, (self._second_of_v2(decided),)",
                "            return Step.SPEND_PAIR, ()",
            ),
        ),
    ),
    Mutant(
        "one-phase-idle",
        "the second phase, where nothing was open",
        _producers(3, "abort,abort,commit/commit,commit"),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "        return Step.SPEND_PAIR if by_abort else Step.CLAIM, (following,)",
                "        return Step.SPEND_PAIR if by_abort else Step.CLAIM, ()",
            ),
        ),
    ),
    Mutant(
        "one-phase-committed",
        "the second phase, after a commit",
        _in(3, "a1,a2/b1", kills=1),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "self._second_phase = (second,) if self.is_v2 else (Step.CLAIM, Step.TAKE_OVER)",
                "self._second_phase = ()",
            ),
        ),
    ),
    Mutant(
        "new-id-unfenced",
        "a new id is claimed by a pair that no producer has",
        _in(3, "a1/b1", kills=1),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "            return Step.CLAIM, ()  # a second",
                "            return Step.TAKE_OVER, ()  # a second",
            ),
        ),
    ),
    Mutant(
        "commit-by-any-pair",
        "the description is compared with the row",
        _in(3, "a1", crashes=1),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "        recovery = RECOVERIES[find(stored, self.found, self.transaction_version)]",
                "        recovery = Recovery.COMMIT",
            ),
        ),
    ),
    Mutant(
        "over-is-lost",
        "a transaction that the log proves to be over is not lost",
        _in(4, "a1", crashes=1),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                "return Recovery.TAKE_OVER if is_over and recovery is Recovery.LOST else recovery",
                "return recovery",
            ),
        ),
    ),
    Mutant(
        "no-epoch-apart",
        "version 1: another epoch for each transaction",
        _in(4, "a1,a2"),
        (Edit(f"{_CLIENT}initialisation.py", "            self.raise_epoch(_EPOCHS_APART)", "            pass"),),
    ),
    # manager
    Mutant(
        "unanswered-not-noted",
        "an unanswered request raises the epoch",
        _in(4, "a1,x2", is_plain=True, losses=1),
        (
            Edit(
                f"{_CLIENT}manager.py",
                (
                    "        elif step is None and isinstance(request, _MAY_COME_LATE):\n"
                    "            self.initialisation.note_unanswered()"
                ),
                "        elif False:\n            pass",
            ),
        ),
    ),
    # initialisation
    Mutant(
        "keep-spends-pair",
        "KeepPreparedTxn keeps",
        _in(1, "a1", crashes=1),
        (Edit(f"{_CLIENT}initialisation.py", "        if ongoing and not self.keep:", "        if ongoing:"),),
    ),
    Mutant(
        "no-keep",
        "InitProducerId keeps the prepared transaction",
        _in(1, "a1", crashes=1),
        (
            Edit(
                f"{_CLIENT}initialisation.py",
                (
                    "init = m.InitProducerId(self._transactional_id, self._requested_timeout_ms(two_phase), "
                    "two_phase, tries)"
                ),
                (
                    "init = m.InitProducerId(self._transactional_id, self._requested_timeout_ms(two_phase), "
                    "two_phase, False)"
                ),
            ),
        ),
    ),
    # manager
    Mutant(
        "prepared-undelivered",
        "prepared means that every record is stored",
        _in(3, "a1", losses=1),
        (
            Edit(
                f"{_CLIENT}manager.py",
                "        if delivered:\n            self.settle_without_kafka()",
                "        self.settle_without_kafka()",
            ),
        ),
    ),
    Mutant(
        "commit-undelivered",
        "EndTxn waits for the records",
        _in(4, "a1", is_plain=True, losses=1),
        (Edit(f"{_CLIENT}manager.py", "        if state in _ENDING and delivered:", "        if state in _ENDING:"),),
    ),
    Mutant(
        "partitions-not-added",
        "version 1: partitions join before records",
        _in(4, "a1"),
        (
            Edit(
                f"{_CLIENT}manager.py",
                ("return self.initialisation.is_v2 or self.transaction.partitions.may_write(topic, partition)"),
                "return True",
            ),
        ),
    ),
    Mutant(
        "next-pair-ignored",
        "the pair of the EndTxn response is used",
        _in(3, "a1,a2"),
        (
            Edit(
                f"{_CLIENT}manager.py",
                (
                    "        if response.producer_id != -1:\n"
                    "            self.producer_id = response.producer_id\n"
                    "            self.producer_epoch = response.producer_epoch"
                ),
                "        pass",
            ),
        ),
    ),
    # take over
    Mutant(
        "found-not-adopted",
        "the commit names the pair that was found",
        _in(3, "a1", crashes=1),
        (
            Edit(
                f"{_CLIENT}take_over.py",
                ("            context.adopt(found.pair)\n            context.transaction.leaves_id = not take_over"),
                "            context.transaction.leaves_id = not take_over",
            ),
        ),
    ),
    # manager
    Mutant(
        "current-is-not-compared",
        "is_current compares the pair",
        _in(1, "a1,a2/b1"),
        (
            Edit(
                f"{_CLIENT}manager.py",
                "return described is not None and described.pair == self.pair",
                "return described is not None",
            ),
        ),
    ),
    # coordinator
    Mutant(
        "broker-zombie-commits",
        "EndTxn: a retry of the last decision does not end the next transaction",
        _in(3, "a1,a2", losses=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "_S.ONGOING:         (_END,            _FENCED,         _END,            _FENCED),",
                "_S.ONGOING:         (_END,            _END,            _END,            _FENCED),",
            ),
        ),
    ),
    Mutant(
        "broker-zombie-aborts",
        "EndTxn: a retry of the last abort does not end the next transaction",
        _in(3, "x1,a2", is_plain=True, losses=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "_S.ONGOING:         (_END,            _FENCED,         _END,            _FENCED),",
                "_S.ONGOING:         (_END,            _FENCED,         _END,            _END),",
            ),
        ),
    ),
    Mutant(
        "broker-epoch-not-compared",
        "EndTxn compares the epoch",
        _in(4, "a1/b1", kills=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                ("    if pair.producer_id == metadata.producer_id:\n        return ErrorCode.producer_fenced"),
                ("    if pair.producer_id == metadata.producer_id:\n        return NO_ERROR"),
            ),
        ),
    ),
    Mutant(
        "broker-writer-epoch",
        "adding a partition compares the epoch",
        _in(1, "a1,a2", losses=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                (
                    "        return ErrorCode.invalid_producer_id_mapping\n"
                    "    return ErrorCode.producer_fenced\n"
                    "\n"
                    "\n"
                    "# --- EndTxn"
                ),
                ("        return ErrorCode.invalid_producer_id_mapping\n    return NO_ERROR\n\n\n# --- EndTxn"),
            ),
        ),
    ),
    Mutant(
        "broker-dual-identity",
        "KIP-939: only the recovering client ends the transaction",
        _in(1, "a1", crashes=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "return NO_ERROR if pair == metadata.client_pair else ErrorCode.producer_fenced",
                "return NO_ERROR",
            ),
        ),
    ),
    # transitions
    Mutant(
        "broker-no-bump",
        "KIP-890: each end raises the epoch",
        _in(3, "a1,a2"),
        (
            Edit(
                f"{_BROKER}transitions.py",
                ("producer_epoch=before.producer_epoch + 1,\n        last_producer_epoch=client.producer_epoch"),
                ("producer_epoch=before.producer_epoch,\n        last_producer_epoch=client.producer_epoch"),
            ),
        ),
    ),
    Mutant(
        "broker-keep-no-bump",
        "KIP-939: KeepPreparedTxn fences",
        _in(1, "a1", crashes=1),
        (Edit(f"{_BROKER}transitions.py", "if limit_reached else _bumped(client)", "if limit_reached else client"),),
    ),
    # coordinator
    Mutant(
        "broker-keep-aborts",
        "KIP-939: KeepPreparedTxn aborts nothing",
        _in(1, "a1/b1"),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "    if request.keep_prepared and (metadata.is_two_phase_commit or",
                "    if False and (metadata.is_two_phase_commit or",
            ),
        ),
    ),
    Mutant(
        "broker-init-no-bump",
        "InitProducerId raises the epoch",
        _in(4, "a1,a2"),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "pair = ProducerPair(pid, epoch + 1)",
                "pair = ProducerPair(pid, max(epoch, 0))",
            ),
        ),
    ),
    Mutant(
        "broker-init-over-open",
        "InitProducerId aborts the open transaction",
        _in(4, "a1", crashes=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "    if metadata.state is not ONGOING:\n        return _initialise",
                "    if True:\n        return _initialise",
            ),
        ),
    ),
    Mutant(
        "broker-add-while-ending",
        "a partition joins no transaction that is being ended",
        _in(3, "a1,a2/b1"),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                (
                    "    if is_pending or metadata.state in PREPARE_STATES:\n"
                    "        return CoordinatorDecision(ErrorCode.concurrent_transactions)"
                ),
                ("    if metadata.state in PREPARE_STATES:\n        return CoordinatorDecision(NO_ERROR)"),
            ),
            Edit(
                f"{_BROKER}coordinator.py",
                "    if is_pending and rules.pending_checked_before_identity:",
                "    if False:",
            ),
        ),
    ),
    Mutant(
        "broker-verify-nothing",
        "KIP-890: a batch is verified",
        _in(4, "x1,a2", is_plain=True, give_ups=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "partition: NO_ERROR if partition in known else ErrorCode.transaction_abortable",
                "partition: NO_ERROR",
            ),
        ),
    ),
    Mutant(
        "broker-verify-epoch",
        "KIP-890: the epoch of a batch is verified",
        _in(4, "x1,a2", is_plain=True, give_ups=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                (
                    "    error = ErrorCode.invalid_producer_id_mapping if metadata "
                    "is None else _writer_error(metadata, writer)\n"
                ),
                "    error = ErrorCode.invalid_producer_id_mapping if metadata is None else NO_ERROR\n",
            ),
        ),
    ),
    Mutant(
        "broker-retry-any-epoch",
        "KIP-939: only the pair that ended the transaction may repeat",
        _in(1, "a1,a2", losses=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "    return pair == (ended_by, metadata.last_producer_epoch)",
                "    return pair.producer_id == ended_by",
            ),
        ),
    ),
    Mutant(
        "broker-aborted-commit-replayed",
        "the commit of an aborted transaction is refused",
        _in(3, "a1,a2", timeouts=1),
        (
            Edit(
                f"{_BROKER}coordinator.py",
                "_S.COMPLETE_ABORT:  (_INVALID_STATE,  _LATE_COMMIT,",
                "_S.COMPLETE_ABORT:  (_INVALID_STATE,  _REPLAY,",
            ),
        ),
    ),
    # transitions
    Mutant(
        "broker-commit-aborts",
        "a commit commits",
        _in(3, "a1"),
        (
            Edit(
                f"{_BROKER}transitions.py",
                ("    state = PREPARE_COMMIT if commit else PREPARE_ABORT\n    after = _after_decision_with_bump"),
                "    state = PREPARE_ABORT\n    after = _after_decision_with_bump",
            ),
        ),
    ),
    # kafka log
    Mutant(
        "partition-no-dedupe",
        "a batch that was stored is not stored again",
        _in(3, "a1", losses=1),
        (
            Edit(
                f"{_PROOF}kafka_log.py",
                "if (batch.sequence, len(batch.records)) == (request.sequence, len(request.records)):",
                "if False:",
            ),
            Edit(f"{_PROOF}kafka_log.py", "if request.sequence != expected and not may_be_any:", "if False:"),
        ),
    ),
    Mutant(
        "partition-no-epoch-fence",
        "a leader refuses an older epoch",
        _in(4, "a1", crashes=1),
        (Edit(f"{_PROOF}kafka_log.py", "if epoch < newest_epoch(log, producer_id):", "if False:"),),
    ),
    # kafka model
    Mutant(
        "partition-not-verified",
        "a leader refuses a batch outside of a transaction",
        _in(4, "x1,a2", is_plain=True, give_ups=1),
        (
            Edit(
                f"{_PROOF}kafka_model.py",
                (
                    "        return kafka, Produced(FENCED)\n"
                    "    if code is not ErrorCode.none:\n"
                    "        return kafka, Produced(code.value)"
                ),
                "        pass",
            ),
        ),
    ),
    # kafka log
    Mutant(
        "partition-abort-commits",
        "an abort marker aborts",
        _in(3, "a1", crashes=1),
        (
            Edit(
                f"{_PROOF}kafka_log.py",
                "Marker(end_offset(log), *pair, marker.committed,",
                "Marker(end_offset(log), *pair, True,",
            ),
        ),
    ),
    Mutant(
        "partition-no-marker",
        "every partition gets its marker",
        _in(3, "a1"),
        (
            Edit(
                f"{_PROOF}kafka_log.py",
                (
                    "return (*log, Marker(end_offset(log), *pair, marker.committed, "
                    "marker.coordinator_epoch)), ErrorCode.none"
                ),
                "return log, ErrorCode.none",
            ),
        ),
    ),
    # outbox
    Mutant(
        "outbox-without-lock",
        "one publisher at a time has the row's lock",
        OutboxSpace(1, Budget(lapses=1), publishers=2),
        (
            Edit(
                f"{_PROOF}world.py",
                (
                    "    return not any(other.is_locked for other in world.txns "
                    "if (other.cut_off is not None) is is_cut_off)\n"
                ),
                "    return True\n",
            ),
        ),
    ),
    Mutant(
        "outbox-deleted-before",
        "the commit that decides deletes the published blocks",
        OutboxSpace(1, Budget(crashes=1)),
        (
            Edit(
                f"{_CORE}publishing.py",
                "            await self._blocks.publish(write, waiting)\n",
                (
                    "            write.database = await owned.database.begin()\n"
                    "            try:\n"
                    "                await self._blocks.publish(write, waiting)\n"
                    "                await write.database.commit()\n"
                    "            finally:\n"
                    "                await write.database.rollback()\n"
                    "                write.database = database\n"
                ),
            ),
        ),
    ),
    Mutant(
        "outbox-deleted-after",
        "the commit that decides deletes the published blocks",
        OutboxSpace(1, Budget(crashes=1)),
        (
            Edit(f"{_CORE}publishing.py", "            await self._blocks.publish(write, waiting)\n", ""),
            Edit(
                f"{_CORE}publishing.py",
                "        self._blocks.note_published(waiting)\n",
                (
                    "        write.database = await owned.database.begin()\n"
                    "        await self._blocks.publish(write, waiting)\n"
                    "        await write.database.commit()\n"
                    "        self._blocks.note_published(waiting)\n"
                ),
            ),
        ),
    ),
    Mutant(
        "outbox-not-noted",
        "blocks that are deleted are noted",
        OutboxSpace(1, Budget(losses=1)),
        (
            Edit(
                f"{_SQL}outbox_statements.py",
                "FROM gone HAVING count(*) > 0)",
                "FROM gone HAVING false)",
            ),
        ),
    ),
    Mutant(
        "outbox-forgotten-unsaid",
        "deleting notes records the highest block number in them",
        OutboxSpace(1, Budget(losses=1), ((b"a1",), (b"b1",))),
        (
            Edit(f"{_SQL}outbox_steps.py", '> {PUBLISHED_KEPT_MS}"', '>= 0"'),
            Edit(
                f"{_SQL}outbox_statements.py",
                "CAST(:state AS varchar), (SELECT max(up_to) FROM forgotten))",
                "CAST(:state AS varchar), NULL)",
            ),
        ),
    ),
    Mutant(
        "outbox-old-is-rolled-back",
        "once notes of later blocks are deleted, that a block is not noted proves nothing",
        OutboxSpace(1, Budget(losses=1, hours=1), ((b"a1",), (b"b1",))),
        (
            Edit(
                f"{_SQL}outbox_steps.py",
                "        if not is_there and added.seq <= forgotten:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "outbox-resolved-in-progress",
        "the outcome of a lost COMMIT is read when its transaction has ended",
        OutboxSpace(1, Budget(losses=1)),
        (
            Edit(
                f"{_SQL}outbox_steps.py",
                "        if not await self._has_ended(transactional_id, added.seq):\n            return None\n",
                "",
            ),
        ),
    ),
    Mutant(
        "outbox-in-progress-is-rolled-back",
        "a block that is still being added has no outcome",
        OutboxSpace(1, Budget(losses=1)),
        (
            Edit(
                f"{_POOL}outbox.py",
                "            if committed is None:\n                return False\n",
                "",
            ),
        ),
    ),
    Mutant(
        "outbox-asked-afterwards",
        "whether the transaction has ended is asked before the outbox is read",
        OutboxSpace(1, Budget(losses=1)),
        (
            Edit(
                f"{_SQL}outbox_steps.py",
                "        if not await self._has_ended(transactional_id, added.seq):\n            return None\n",
                "",
            ),
            Edit(
                f"{_SQL}outbox_steps.py",
                "self._statements.rows(self._sql.evidence, values)\n",
                (
                    "self._statements.rows(self._sql.evidence, values)\n"
                    "        if not await self._has_ended(transactional_id, added.seq):\n"
                    "            return None\n"
                ),
            ),
        ),
    ),
    Mutant(
        "outbox-newest-first",
        "blocks are published in the order of their numbers",
        OutboxSpace(1, Budget(), ((b"a1", b"a2"),)),
        (
            Edit(
                f"{_SQL}outbox_statements.py",
                'AS oldest) AS summed ORDER BY seq"',
                'AS oldest) AS summed ORDER BY seq DESC"',
            ),
        ),
    ),
    Mutant(
        "outbox-not-kept",
        "the last batch is kept where a broker may abort it",
        OutboxSpace(3, Budget(timeouts=1, deletions=1)),
        (
            Edit(
                f"{_CORE}stored_blocks.py",
                "        return self._owned.policy.is_outbox and write.bounded_ms is not None\n",
                "        return False\n",
            ),
        ),
    ),
    Mutant(
        "outbox-deleted-undecided",
        "the last batch is deleted once its end is known",
        OutboxSpace(3, Budget(timeouts=1, deletions=1)),
        (
            Edit(
                f"{_CORE}completion.py",
                "        proof = await prove(owned, database, row, ongoing)\n",
                (
                    "        other = await owned.database.begin()\n"
                    "        outbox = other.stored_blocks(owned.transactional_id)\n"
                    "        await outbox.publish(owned.transactional_id, ())\n"
                    "        await other.commit()\n"
                    "        proof = await prove(owned, database, row, ongoing)\n"
                ),
            ),
        ),
    ),
    Mutant(
        "outbox-last-batch-waits",
        "the last batch is not taken for blocks that wait",
        OutboxSpace(3, Budget(), ((b"a1", b"a2"),), rounds=2, are_large=True),
        (
            Edit(
                f"{_SQL}outbox_steps.py",
                '{OF_ID} AND seq > 0 AND seq NOT IN ({self.numbers})"',
                '{OF_ID} AND seq > 0"',
            ),
        ),
    ),
    Mutant(
        "outbox-last-batch-left",
        "the next batch deletes the last one",
        OutboxSpace(3, Budget(), ((b"a1", b"a2"),), rounds=2, are_large=True),
        (Edit(f"{_SQL}outbox_statements.py", "ARRAY({OF_POSTGRES.numbers} UNION ALL SELECT", "ARRAY(SELECT"),),
    ),
    Mutant(
        "outbox-owed-not-kept",
        "owed records are kept with the batch that publishes them",
        OutboxSpace(3, Budget(timeouts=2), is_readable=False),
        (Edit(f"{_CORE}stored_blocks.py", "                blocks = (first, *blocks)\n", ""),),
    ),
    Mutant(
        "outbox-not-proven-goes-on",
        "an unproven batch is not taken for committed",
        OutboxSpace(4, Budget(timeouts=1, deletions=1)),
        (
            Edit(f"{_CORE}completion.py", "        if proof.not_proven is not None:\n", "        if False:\n"),
            Edit(f"{_CORE}completion.py", "is_over=proof.is_over)", "is_over=True)"),
        ),
    ),
    Mutant(
        "outbox-verdict-not-noted",
        "the row notes how the last batch has ended before the coordinator forgets it",
        OutboxSpace(3, Budget(crashes=1, timeouts=1), is_readable=False),
        (Edit(f"{_CORE}last_batch.py", "    if proof.verdict is None or not is_wanted:\n", "    if True:\n"),),
    ),
    Mutant(
        "outbox-batch-not-settled",
        "a batch of which the log tells nothing is settled before the next one",
        OutboxSpace(3, Budget(crashes=1), ((b"a1", b"a2"),), are_large=True, is_readable=False),
        (Edit(f"{_CORE}publishing.py", "if await self._steps.log_will_tell():", "if True:"),),
    ),
    Mutant(
        "outbox-not-durable",
        "a block of a lost COMMIT is made durable before its caller is told",
        OutboxSpace(1, Budget(failovers=1, losses=1)),
        (
            Edit(
                f"{_POOL}outbox.py",
                (
                    "            await self.database.make_durable(self.transactional_id, row, "
                    "timeout_ms=self._resolve_timeout_ms)\n"
                ),
                "",
            ),
        ),
    ),
    Mutant(
        "outbox-lock-not-read-again",
        "the outcome is read again after it was made durable",
        OutboxSpace(1, Budget(failovers=1, losses=1)),
        (
            Edit(
                f"{_POOL}outbox.py",
                (
                    "            await database.read(self.transactional_id)"
                    "  # fails if a standby has taken over since the lock\n"
                ),
                "",
            ),
        ),
    ),
    Mutant(
        "outbox-number-alone",
        "a number that a server gives twice is not taken for the other block",
        OutboxSpace(1, Budget(failovers=1, losses=1), ((b"a1",), (b"b1", b"b2"))),
        (
            Edit(
                f"{_SQL}outbox_statements.py",
                "hashint8extended(seq, stored_at_ms) AS block",
                "hashint8extended(seq, 0) AS block",
            ),
            Edit(
                f"{_SQL}outbox_statements.py",
                "hashint8extended({_BLOCK}, CAST(:stored_at AS bigint))",
                "hashint8extended({_BLOCK}, 0)",
            ),
        ),
    ),
    # a pool that goes both ways
    Mutant(
        "diverted-not-looked",
        "a block that has locked its rows looks whether blocks of the pool wait in the outbox",
        _BOTH_WAYS,
        (Edit(f"{_POOL}coordinator.py", "or await self._outbox.writes.follows_diverted(write):", "or False:"),),
    ),
    Mutant(
        "diverted-without-hold",
        "a block that adds its records keeps the diversion from ending",
        _BACK,
        (Edit(f"{_SQL}diversion_statements.py", 'f"{_SELECT} FOR SHARE"', "_SELECT"),),
    ),
    Mutant(
        "diversion-not-begun",
        "the first block in the outbox begins the diversion",
        _BOTH_WAYS,
        (
            Edit(
                f"{_SQL}diversion_statements.py",
                "SET stored_at_ms = :now WHERE {_OF_ROW} AND stored_at_ms = 0",
                "SET stored_at_ms = 0 WHERE {_OF_ROW} AND stored_at_ms = 0",
            ),
        ),
    ),
    Mutant(
        "diversion-ended-unlocked",
        "the publisher waits for the blocks that hold the diversion before it looks for the last time",
        _BACK,
        (
            Edit(
                f"{_SQL}diversion_statements.py",
                'FOR SHARE",\n        f"{_SELECT} FOR UPDATE",',
                'FOR SHARE",\n        _SELECT,',
            ),
        ),
    ),
    Mutant(
        "diversion-ended-too-early",
        "the publisher ends the diversion only if no block waits",
        _BACK,
        (
            Edit(
                f"{_CORE}publishing.py",
                "        if newest_seq:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "outbox-steps-not-noted",
        "blocks that are deleted are noted, in steps",
        OutboxSpace(1, Budget(losses=1), in_steps=True),
        (
            Edit(
                f"{_SQL}outbox_elsewhere.py",
                "        await self._statements.changed(self._in_steps.note, note)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "outbox-steps-any-note",
        "a note of other blocks says nothing about this one, in steps",
        OutboxSpace(1, Budget(losses=1), ((b"a1",), (b"b1",)), in_steps=True),
        (
            Edit(
                f"{_SQL}outbox_elsewhere.py",
                """f'%"{token_of(added.content)}"%'""",
                '"%"',
            ),
        ),
    ),
    Mutant(
        "outbox-steps-forgotten-unsaid",
        "deleting notes records the highest block number in them, in steps",
        OutboxSpace(1, Budget(losses=1), ((b"a1",), (b"b1",)), in_steps=True),
        (
            Edit(f"{_SQL}outbox_steps.py", '> {PUBLISHED_KEPT_MS}"', '>= 0"'),
            Edit(
                f"{_SQL}outbox_elsewhere.py",
                "return max((-seq for seq in old), default=0)",
                "return 0",
            ),
        ),
    ),
    Mutant(
        "outbox-steps-last-batch-left",
        "the next batch deletes the last one, in steps",
        OutboxSpace(3, Budget(), ((b"a1", b"a2"),), rounds=2, are_large=True, in_steps=True),
        (
            Edit(
                f"{_SQL}outbox_elsewhere.py",
                '        published = {seq: token_of(bytes(content or b"")) for seq, content in last}\n',
                "        published: dict[int, str] = {}\n",
            ),
        ),
    ),
    Mutant(
        "outbox-steps-newest-first",
        "blocks are published in the order of their numbers, in steps",
        OutboxSpace(1, Budget(), ((b"a1", b"a2"),), in_steps=True),
        (
            Edit(
                f"{_SQL}outbox_elsewhere.py",
                'AND seq <= :last ORDER BY seq"',
                'AND seq <= :last ORDER BY seq DESC"',
            ),
        ),
    ),
)

EQUIVALENTS: Final = (
    Equivalent(
        "lock-not-read-third, lock-not-read-fourth",
        (
            "Each of the two readings after the completion does what the other is missed for; "
            "`no-reading-after-completion` takes both away."
        ),
    ),
    Equivalent(
        "failed-producer-kept, lost-is-committed, unconfirmed-is-ready, superseded-goes-on",
        ("The producer, or the comparison of the row, refuses the next call, so that the id is taken over anyway."),
    ),
    Equivalent(
        "repair-by-successor-row",
        (
            "The outcome of a repair whose COMMIT was lost is then said to be unknown, which is true, "
            "and the next take-over reads the row."
        ),
    ),
    Equivalent(
        "in-doubt-for-ever", "A pair is never open again after it has ended, so the comparison with it never holds."
    ),
    Equivalent(
        "complete-abort-is-committed, prepare-abort-is-committed",
        (
            "Two guards: what the coordinator is taken to have committed is verified in the log at "
            "the next take-over, and repaired."
        ),
    ),
    Equivalent(
        "complete-commit-is-aborted, prepare-commit-is-aborted, v1-commit-next",
        (
            "Two guards: what the coordinator is taken to have aborted is looked up in the log first, "
            "which shows the commit."
        ),
    ),
    Equivalent(
        "stored-pair-spent, one-epoch-apart",
        "An abort that looks like that of the stored transaction is looked up in the log too.",
    ),
    Equivalent(
        (
            "refused-by-abort-is-committed, refused-by-abort-is-fenced, refused-by-commit-is-lost, "
            "refused-open-is-committed, refused-other-is-committed, refused-no-trace-is-committed, "
            "refused-no-trace-is-lost, committed-by-another-any"
        ),
        (
            "After a refused commit the producer is given up either way, and the take-over that "
            "follows decides by the row and the log."
        ),
    ),
    Equivalent(
        "settled-text-not-read, any-settled-text",
        (
            "Without the text, or with that of another transaction, the coordinator is believed, and "
            "it has nothing to complete for a settled row."
        ),
    ),
    Equivalent(
        "own-end-is-overtaken, broker-next-pair-lost",
        ("The take-over fails instead of going on, and the next one succeeds: only availability suffers."),
    ),
    Equivalent(
        "abort-evidence-erased",
        (
            "The log keeps the evidence, so the abort is found and repaired although "
            "the coordinator has forgotten it. `no-proof` takes the log away."
        ),
    ),
    Equivalent(
        "not-described-again, raise-not-noted, settle-empty-raises, claim-not-described",
        (
            "A request may be carried out arbitrarily late even with the description before it. The "
            "guard makes that rarer; what is aborted then is repaired."
        ),
    ),
    Equivalent(
        "keep-same-pair",
        (
            "Where KeepPreparedTxn does not fence, each end still raises the epoch "
            "(KIP-890). `broker-keep-no-bump` shows that such a broker is noticed."
        ),
    ),
    Equivalent(
        "broker-v0-aborted-commit-replayed",
        "An abort by the broker has raised the epoch, which is compared before the state.",
    ),
    Equivalent(
        "manifest-first-only",
        ("The batches of a partition are acknowledged in their order, so that the first one has the lowest offset."),
    ),
    Equivalent(
        "broker-init-while-ending",
        "A transaction that is being ended has its completion pending, which is checked before.",
    ),
    Equivalent(
        "broker-no-fence-bump",
        (
            "The state of an aborted transaction refuses the commit of its producer, whatever the "
            "epoch, and the log shows the abort."
        ),
    ),
    Equivalent(
        "broker-two-phase-timeout",
        ("A broker that aborts what must not time out makes tier 1 a tier 3, and is repaired like one."),
    ),
    Equivalent(
        "outbox-resolved-without-lock",
        (
            "The row of a block becomes a note in one commit, and one statement looks for both. The lock is for what "
            "is not in these spaces: a primary that was cut off, and a commit that is not durable."
        ),
    ),
    Equivalent(
        "outbox-lease-not-asserted, outbox-row-not-compared",
        (
            "Two publishers fence each other: the lease only keeps the others from trying, and Kafka refuses the epoch "
            "of the one that goes on."
        ),
    ),
)
"""Another guard, or the next take-over, has the same effect."""

OUTSIDE: Final = (
    Equivalent(
        "slot-in-two-hands",
        (
            "The background of a pool does its work in one piece here, and a block that is past its lease holds the "
            "row then; `tests/crash/test_pool_leases.py` finds it."
        ),
    ),
    Equivalent("open-one-hides-none", "Only a missing marker (KAFKA-20734) shows it."),
    Equivalent("broker-partitions-kept", "With one partition, the next transaction has it anyway."),
    Equivalent("manifest-of-another", "Only a change by hand leaves a manifest that is not of the row's pair."),
    Equivalent(
        "bound-not-compared",
        ("No time passes in the search. An abort by the timeout right after such a COMMIT is in it, and is repaired."),
    ),
    Equivalent("recover-keeps-ready", "No program of these spaces calls recover() on a writer that is ready."),
    Equivalent("rotated-always, the last epoch", "Needs 32,767 transactions, or a start at the last epochs."),
)
"""This world lacks the events that would show them."""

OPEN: Final = (
    Equivalent(
        (
            "settle-reopened-ignored, settle-not-waited, settle-raised-is-taken, settle-never-taken, "
            "settle-reopens-others, settling-ignored"
        ),
        "Not found with one or two lost responses on tier 4, with and without a database.",
    ),
    Equivalent(
        ("ending-goes-on, reopened-goes-on, claim-forgotten, ending-is-described, steps-left"),
        ("Not found with one fault; their guards concern what two processes do within one take-over."),
    ),
    Equivalent("broker-expected-pair, broker-expected-epoch", "KIP-360's comparisons: not found with one fault."),
    Equivalent(
        "copy-repairs-v1",
        "A coordinator before version 2 proves no abort: not found with one lost log, one timeout and one deletion.",
    ),
)
"""Neither found nor explained: a space or a check may be missing."""
