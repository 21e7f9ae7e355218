"""Plant one mistake at a time in decisions, recipes and broker, and see that a test fails: `python -m tests.mutants`.

Each mutant is a line that was wrong once, or would be a lost, doubled or half-visible write if it were. `make test` has
to kill all but those that say `proof`. Only the tests that are meant to see a mutant are run, so all of them take
minutes; a mutant that survives is a hole in the tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
COPIED: Final = ("dualwrite", "spark_sink", "tests", "examples", "benchmarks", "docs")
TIMEOUT_S: Final = 600


class Mutant(NamedTuple):
    """A line, its replacement, and the tests that have to fail then."""

    file: str
    line: str
    wrong: str
    tests: str
    proof: bool = False
    """Whether only `make proof` runs a test that sees it."""


_CORE = "dualwrite/recipes/core/"
_CLIENT = "dualwrite/client/transactions/"
_LOG = "dualwrite/client/log/"
_BROKER = "dualwrite/broker_emulator/"
_COORDINATOR = f"{_BROKER}transactions/coordinator.py"
_TRANSITIONS = f"{_BROKER}transactions/transitions.py"
_PRODUCERS = f"{_BROKER}log/producer_state.py"
_STABLE = f"{_BROKER}log/last_stable_offset.py"

MUTANTS: Final = (
    # decisions
    Mutant(
        "dualwrite/decisions/by_row.py", "if row == ongoing else", "if row != ongoing else", "recipes/test_decisions.py"
    ),
    Mutant(
        "dualwrite/decisions/by_row.py",
        "if row == previous:",
        "if row == previous and False:",
        "recipes/test_decisions.py",
    ),
    Mutant(
        "dualwrite/recipes/recovery/plan.py",
        "Row.FREE: (_A.COMMIT, _A.ABORT,",
        "Row.FREE: (_A.COMMIT, _A.COMMIT,",
        "recovery/test_plan.py recovery/test_service.py",
    ),
    Mutant(
        "dualwrite/recipes/recovery/plan.py",
        "Row.HELD: (_A.IN_USE, _A.IN_USE,",
        "Row.HELD: (_A.IN_USE, _A.ABORT,",
        "recovery/test_plan.py recovery/test_service.py",
    ),
    Mutant(
        f"{_CLIENT}recovery.py",
        "if is_open and now.start_ms != decided.start_ms:",
        "if False:",
        "unit/test_recovery.py unit/test_quarrelling_recoverers.py",
    ),
    Mutant(
        f"{_CLIENT}recovery.py",
        "Finding.ABORTED: Recovery.LOST",
        "Finding.ABORTED: Recovery.TAKE_OVER",
        "unit/test_recovery.py",
    ),
    Mutant(
        f"{_CLIENT}recovery.py",
        "Finding.ABORTED: AfterRefusal.LOST",
        "Finding.ABORTED: AfterRefusal.COMMITTED",
        "unit/test_recovery.py producer/test_tiers.py",
    ),
    Mutant(f"{_CLIENT}recovery.py", "if ahead < 0:", "if ahead < -1:", "unit/test_recovery.py"),
    # recipes
    Mutant(f"{_CORE}steps.py", "if row == known.row:", "if True:", "recipes/test_late_take_over.py"),
    Mutant(
        f"{_CORE}steps.py",
        "if passed_ms < bounded_ms - min(",
        "if True or passed_ms < bounded_ms - min(",
        "recipes/test_late_take_over.py recipes/test_dual_writer.py",
    ),
    Mutant(f"{_CORE}steps.py", "if not write.database.commit_was_sent:", "if True:", "crash/test_lost_commit.py"),
    Mutant(
        f"{_CORE}steps.py",
        "self._slot.state in (SlotState.OPEN, SlotState.DECIDING)",
        "self._slot.state in (SlotState.DECIDING,)",
        "recipes/test_dual_writer.py crash/test_split_brain.py",
    ),
    Mutant(
        f"{_CORE}completion.py",
        "        await _assert_still_locked(owned, database, row)\n        if is_open and await note",
        "        if is_open and await note",
        "recipes/test_late_take_over.py",
    ),
    Mutant(
        f"{_CORE}publishing.py",
        "            await self._blocks.publish(write, waiting)\n",
        "            pass\n",
        "recipes/test_outbox.py",
    ),
    Mutant(
        f"{_CORE}completion.py",
        "    if is_current:",
        "    if False:",
        "recipes/test_late_take_over.py recipes/test_dual_writer.py",
    ),
    Mutant(
        f"{_CORE}completion.py",
        "        row = await database.read(owned.transactional_id)\n        if",
        "        row = await database.read(owned.transactional_id) if False else owned.row\n        if",
        "recipes/test_dual_writer.py crash/test_split_brain.py",
    ),
    Mutant(
        f"{_CORE}completion.py",
        "await owned.database.make_durable(owned.transactional_id, row, timeout_ms=owned.resolve_timeout_ms)",
        "pass",
        "durability/test_synchronous_standby.py",
        proof=True,
    ),
    Mutant(
        f"{_CORE}stored_blocks.py",
        "self._most_blocks = len(waiting.blocks) // 2",
        "pass",
        "recipes/test_refused_blocks.py::test_blocks_that_are_too_large_only_together_are_published",
    ),
    Mutant(
        f"{_CORE}stored_blocks.py",
        "if len(waiting.blocks) > 1 or (self._owned.owed and waiting.blocks):",
        "if len(waiting.blocks) > 1:",
        "crash/test_outbox_not_proven.py",
        proof=True,
    ),
    Mutant(
        f"{_CORE}publishing.py",
        "if not row.is_empty and text != settled_text(row) and not is_forgotten(row, text):",
        "if text and text != settled_text(row) and not is_forgotten(row, text):",
        "recovery/test_another_cluster.py",
        proof=True,
    ),
    Mutant(
        f"{_CORE}publishing.py",
        "if not row.is_empty and text != settled_text(row) and not is_forgotten(row, text):",
        "if not row.is_empty and text != settled_text(row):",
        "recovery/test_forgetting.py",
        proof=True,
    ),
    # repair
    Mutant(
        f"{_CORE}steps.py",
        "await kafka.send((*owed, *ahead)",
        "await kafka.send((*ahead,)",
        "recipes/test_repair_owed.py",
    ),
    Mutant(
        f"{_CORE}steps.py",
        """                await kafka.send((*owed, *ahead), sent, any_size=True)
            await kafka.send(write.records, sent)
""",
        """                await kafka.send(write.records, sent)
            await kafka.send((*owed, *ahead) or write.records, sent)
""",
        "recipes/test_repair_owed.py",
    ),
    Mutant(
        f"{_CORE}steps.py",
        "if new == previous:",
        "if False:",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(
        f"{_CORE}publishing.py",
        "            await self._settle(database, row)\n            return resolution",
        "            return resolution",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(
        f"{_CORE}coordinator.py",
        "if self._slot.known.owed and write.records.has_offsets:",
        "if False:",
        "recipes/test_repair_owed.py",
    ),
    Mutant(
        f"{_CORE}owned_id.py",
        "if outcome is Outcome.ROLLED_BACK and self.owed:\n                await self.leave_in_doubt(self.row)",
        "if outcome is Outcome.ROLLED_BACK and self.owed:\n                self.slot.move(SlotState.READY, owed=())",
        "recipes/test_repair_owed.py",
    ),
    Mutant(
        f"{_CORE}owned_id.py",
        "self.slot.note(owed=())",
        "pass",
        "recipes/test_repair_owed.py",
    ),
    Mutant(
        f"{_CORE}completion.py",
        "if proof.is_known and not again:",
        "if False:",
        "recipes/test_repair.py::test_it_is_aborted_after_it_was_found_open",
    ),
    Mutant(
        f"{_CORE}repair.py",
        "    if end.aborted:\n        return",
        "    if end.committed:\n        return",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(
        f"{_CORE}repair.py",
        "if end.committed:",
        "if not end.aborted:",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(
        "dualwrite/client/transactions/manifest.py",
        "manifest if manifest is not None and manifest.prepared_state == state else None",
        "manifest",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(
        f"{_CORE}repair.py",
        "if text == settled_text(row):",
        "if text.startswith('committed '):",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(f"{_CORE}repair.py", "if manifest.has_offsets:", "if False:", "recipes/test_repair_evidence.py"),
    Mutant(
        f"{_CORE}repair.py",
        "        if end.gone:\n            raise _lost(",
        "        if False:\n            raise _lost(",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(f"{_CORE}completion.py", "        if proof.is_known:\n", "        if False:\n", "recipes/test_torn.py"),
    Mutant(
        f"{_CORE}repair.py",
        "    except NoMarkerError as error:\n        raise _hangs(owned, row, error) from error",
        "    except NoMarkerError:\n        return KNOWN",
        "recipes/test_torn.py",
    ),
    Mutant(f"{_CORE}repair.py", "if not ongoing.is_empty:", "if False:", "recipes/test_torn.py"),
    Mutant(f"{_CORE}repair.py", "        await owned.kafka.is_current()", "        pass", "recipes/test_torn.py"),
    Mutant(
        "dualwrite/client/admin/calls.py",
        " or row.producer_epoch != producer_epoch:",
        ":",
        "recipes/test_torn.py",
    ),
    Mutant(
        "dualwrite/recipes/recovery/log_ends.py",
        "if again.finding is Finding.OPEN or again.described.is_ending:",
        "if False:",
        "recipes/test_torn.py",
    ),
    Mutant(
        "dualwrite/recipes/recovery/plan.py",
        "frozenset({Finding.COMMITTED, Finding.ABORTED,",
        "frozenset({Finding.ABORTED,",
        "recovery/test_plan.py",
    ),
    Mutant(
        f"{_CLIENT}initialisation.py",
        "self._committed = described if described.is_committed else None",
        "self._committed = None",
        "recipes/test_torn.py",
    ),
    Mutant(
        "dualwrite/recipes/recovery/plan.py",
        "bool(end.aborted) and not end.gone",
        "bool(end.aborted)",
        "recovery/test_plan.py",
    ),
    Mutant(
        f"{_LOG}transaction_end.py",
        "_ENDS: Final = {Marker.COMMIT: PartitionEnd.COMMITTED, Marker.ABORT: PartitionEnd.ABORTED}",
        "_ENDS: Final = {Marker.COMMIT: PartitionEnd.ABORTED, Marker.ABORT: PartitionEnd.COMMITTED}",
        "recipes/test_repair.py::test_another_producer_holds_the_last_stable_offset",
    ),
    Mutant(
        f"{_LOG}transaction_end.py",
        "if fetched.last_stable_offset <= self.part.last_offset:",
        "if False:",
        "recipes/test_repair.py::test_another_producer_holds_the_last_stable_offset",
    ),
    Mutant(
        f"{_LOG}transaction_end.py",
        "if self._is_at_last_record or self._probes:",
        "if self._is_at_last_record:",
        "unit/test_transaction_end.py recipes/test_repair_evidence.py",
    ),
    Mutant(
        f"{_LOG}transaction_end.py",
        "if producer_id == self._prepared.producer_id and first <= self.part.last_offset",
        "if first <= self.part.last_offset",
        "unit/test_transaction_end.py",
    ),
    Mutant(
        "dualwrite/recipes/psycopg/commit_message.py",
        "        connection.pgconn.consume_input()\n        connection.pgconn.consume_input()\n",
        "        connection.pgconn.consume_input()\n",
        "recipes/test_psycopg.py::test_a_connection_that_the_server_has_ended_gets_no_commit",
    ),
    # the message that writes the row and commits
    Mutant(
        "dualwrite/recipes/sql/postgres.py",
        'f" AND {SAME_TABLE} AND {STILL_HELD} AND',
        'f" AND {SAME_TABLE} AND',
        "recipes/test_commit_message.py",
    ),
    Mutant(
        "dualwrite/recipes/sql/postgres.py",
        "CASE WHEN count(*) = 1 THEN",
        "CASE WHEN count(*) >= 0 THEN",
        "recipes/test_commit_message.py",
    ),
    Mutant(
        "dualwrite/recipes/sqlalchemy/transaction.py",
        "self.commit_was_sent and not message.was_committed",
        "False",
        "recipes/test_commit_message.py",
    ),
    Mutant(
        "dualwrite/recipes/sqlalchemy/transaction.py",
        "self._assert_still_decides(self._is_still_written)",
        "pass",
        "recipes/test_commit_listeners.py",
    ),
    Mutant(
        "dualwrite/recipes/sqlalchemy/transaction.py",
        "if self._is_left_open:",
        "if False:",
        "recipes/test_commit_listeners.py",
    ),
    Mutant(
        "dualwrite/recipes/sqlalchemy/transaction.py",
        "if message is not None and message.was_refused:",
        "if message is not None and not message.was_committed:",
        "crash/test_lost_commit.py",
    ),
    Mutant(
        "dualwrite/recipes/sql/postgres.py",
        """ WHERE transactional_id = :id AND prepared_transaction_state = :previous\"""",
        """ WHERE transactional_id = :id\"""",
        "recipes/test_commit_message.py",
    ),
    # broker
    Mutant(
        _TRANSITIONS,
        "producer_epoch=before.producer_epoch + 1,\n        last_producer_epoch=client.producer_epoch",
        "producer_epoch=before.producer_epoch,\n        last_producer_epoch=client.producer_epoch",
        "interop/raw_wire/test_end_txn.py",
    ),
    Mutant(
        _TRANSITIONS,
        "if is_bumped else before.producer_epoch + 1",
        "if is_bumped else before.producer_epoch",
        "emulator/wire/test_init_producer_id.py emulator/transactions/test_service.py",
    ),
    Mutant(
        _TRANSITIONS,
        "if limit_reached else _bumped(client)",
        "if limit_reached else client",
        "emulator/wire/test_init_producer_id.py",
    ),
    Mutant(
        _COORDINATOR,
        "_S.ONGOING:         (_END,            _FENCED,         _END,            _FENCED),",
        "_S.ONGOING:         (_END,            _END,            _END,            _FENCED),",
        "interop/raw_wire/test_end_txn.py",
    ),
    Mutant(
        _COORDINATOR,
        "    if pair.producer_id == metadata.producer_id:\n        return ErrorCode.producer_fenced",
        "    if pair.producer_id == metadata.producer_id:\n        return NO_ERROR",
        "interop/raw_wire/test_end_txn.py",
    ),
    Mutant(
        _STABLE,
        "        if self._open:\n            lowest",
        "        if False:\n            lowest",
        "emulator/log/test_last_stable_offset.py",
    ),
    Mutant(
        _PRODUCERS,
        "if segment is not None and not commit:",
        "if segment is not None and commit:",
        "emulator/log/test_partition_log.py emulator/log/test_aborted_index.py",
    ),
    Mutant(
        _PRODUCERS,
        "if header.producer_epoch >= last_epoch:",
        "if header.producer_epoch >= 0:",
        "interop/raw_wire/test_produce.py",
    ),
    Mutant(
        _PRODUCERS,
        "if expected is not None and sequence != expected:",
        "if False:",
        "emulator/log/test_producer_state.py",
    ),
    Mutant(
        _PRODUCERS,
        "    return entry.has_open_transaction\n",
        "    return False\n",
        "emulator/wire/test_markers.py",
    ),
    Mutant(
        _PRODUCERS,
        "first_offset = entry.current_txn_first_offset\n",
        "pass\n",
        "interop/raw_wire/test_produce.py emulator/log/test_log_model.py",
    ),
    Mutant(
        _PRODUCERS,
        "verification.guard is guard:",
        "verification.guard is not None:",
        "emulator/log/test_partition_log.py",
    ),
    # Spark
    Mutant(
        "spark_sink/store/rules.py",
        "if attempt.status in CONDEMNABLE else",
        "if False else",
        "spark/test_protocol.py spark/test_commit_store.py spark/test_store_rules.py",
    ),
    Mutant(
        "spark_sink/store/commit_store.py",
        "where(named, committing, self._attempt.c.prepared_state == str(old))",
        "where(named, committing)",
        "spark/test_commit_store.py",
    ),
    Mutant(
        "spark_sink/store/commit_store.py",
        "where(named, committing, self._attempt.c.prepared_state == str(old))",
        "where(named, self._attempt.c.prepared_state == str(old))",
        "spark/test_commit_store.py",
    ),
    Mutant(
        "spark_sink/store/commit_store.py",
        "for each, end in judged.items() if current.get(each) == str(end.judged)}",
        "for each, end in judged.items() if each in current}",
        "spark/test_commit_store.py",
    ),
    Mutant(
        "spark_sink/driver/completion.py",
        "if row.state != claim.prepared_state and not producer.coordinator_knows(row.state):",
        "if False:",
        "spark/test_repair.py",
        proof=True,
    ),
    Mutant(
        "spark_sink/driver/repair.py",
        "if not decided:",
        "if False:",
        "spark/test_repair.py::test_an_operator_marks_it_lost_in_the_middle_of_a_repair",
        proof=True,
    ),
)


def check(number: int, mutant: Mutant) -> tuple[int, str]:
    """Return the number of a mutant and its fate, in a copy of the checkout."""
    with tempfile.TemporaryDirectory(prefix="dualwrite-mutant-") as directory:
        copy = Path(directory)
        for name in COPIED:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / mutant.file
        text = path.read_text()
        if text.count(mutant.line) != 1:
            return number, f"STALE: the line stands {text.count(mutant.line)} times"
        path.write_text(text.replace(mutant.line, mutant.wrong))
        return number, _verdict(copy, mutant)


def _verdict(copy: Path, mutant: Mutant) -> str:
    tests = [f"tests/{name}" for name in mutant.tests.split()]
    selected = [] if mutant.proof else ["-m", "not proof"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *selected, *tests]
    try:
        ended = subprocess.run(
            command,
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "killed (it hangs)"
    if ended.returncode == 1:
        failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return f"killed by {failed[0].split(' - ')[0].split(' ', 1)[1]}" if failed else "killed"
    return "SURVIVED" if ended.returncode == 0 else f"BROKEN: pytest ended with {ended.returncode}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all mutants, or those with the given numbers; return 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="which mutants, from 1 on; all without it")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    chosen = [
        (number, each) for number, each in enumerate(MUTANTS, 1) if number in options.numbers or not options.numbers
    ]
    survived = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, verdict in pool.map(lambda each: check(*each), chosen):
            mutant = MUTANTS[number - 1]
            kind = " (proof)" if mutant.proof else ""
            print(f"{number:2} {mutant.file}: {mutant.line.strip().splitlines()[0]}{kind}: {verdict}", flush=True)
            survived += not verdict.startswith("killed")
    print(f"{len(chosen) - survived} of {len(chosen)} mutants killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
