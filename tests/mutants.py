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


_LAST_STABLE_OFFSET: Final = "dualwrite/broker_emulator/log/last_stable_offset.py"
_PRODUCER_STATE: Final = "dualwrite/broker_emulator/log/producer_state.py"
_TRANSACTIONS_COORDINATOR: Final = "dualwrite/broker_emulator/transactions/coordinator.py"
_TRANSITIONS: Final = "dualwrite/broker_emulator/transactions/transitions.py"
_ACCUMULATOR: Final = "dualwrite/client/records/accumulator.py"
_ENDING: Final = "dualwrite/client/admin/ending.py"
_TRANSACTION_END: Final = "dualwrite/client/log/transaction_end.py"
_INITIALISATION: Final = "dualwrite/client/transactions/initialisation.py"
_MANIFEST: Final = "dualwrite/client/transactions/manifest.py"
_PARTITION_QUEUE: Final = "dualwrite/client/records/partition_queue.py"
_RECOVERY: Final = "dualwrite/client/transactions/recovery.py"
_BY_ROW: Final = "dualwrite/decisions/by_row.py"
_CORE_COMPLETION: Final = "dualwrite/recipes/core/completion.py"
_CORE_COORDINATOR: Final = "dualwrite/recipes/core/coordinator.py"
_OWNED_ID: Final = "dualwrite/recipes/core/owned_id.py"
_PUBLISHING: Final = "dualwrite/recipes/core/publishing.py"
_CORE_REPAIR: Final = "dualwrite/recipes/core/repair.py"
_STEPS: Final = "dualwrite/recipes/core/steps.py"
_STORED_BLOCKS: Final = "dualwrite/recipes/core/stored_blocks.py"
_COMMIT_MESSAGE: Final = "dualwrite/recipes/psycopg/commit_message.py"
_LOG_ENDS: Final = "dualwrite/recipes/recovery/log_ends.py"
_PLAN: Final = "dualwrite/recipes/recovery/plan.py"
_POSTGRES: Final = "dualwrite/recipes/sql/postgres.py"
_TRANSACTION: Final = "dualwrite/recipes/sqlalchemy/transaction.py"
_DRIVER_COMPLETION: Final = "spark_sink/driver/completion.py"
_DRIVER_REPAIR: Final = "spark_sink/driver/repair.py"
_STORE_FINISHING: Final = "spark_sink/store/finishing.py"
_RULES: Final = "spark_sink/store/rules.py"

MUTANTS: Final = (
    # decisions
    Mutant(_BY_ROW, "if row == ongoing else", "if row != ongoing else", "recipes/test_decisions.py"),
    Mutant(_BY_ROW, "if row == previous:", "if row == previous and False:", "recipes/test_decisions.py"),
    Mutant(
        _PLAN,
        "Row.FREE: (_A.COMMIT, _A.ABORT,",
        "Row.FREE: (_A.COMMIT, _A.COMMIT,",
        "recovery/test_plan.py recovery/test_service.py",
    ),
    Mutant(
        _PLAN,
        "Row.HELD: (_A.IN_USE, _A.IN_USE,",
        "Row.HELD: (_A.IN_USE, _A.ABORT,",
        "recovery/test_plan.py recovery/test_service.py",
    ),
    Mutant(
        _RECOVERY,
        "if is_open and now.start_ms != decided.start_ms:",
        "if False:",
        "unit/test_recovery.py unit/test_quarrelling_recoverers.py",
    ),
    Mutant(_RECOVERY, "Finding.ABORTED: Recovery.LOST", "Finding.ABORTED: Recovery.TAKE_OVER", "unit/test_recovery.py"),
    Mutant(
        _RECOVERY,
        "Finding.ABORTED: AfterRefusal.LOST",
        "Finding.ABORTED: AfterRefusal.COMMITTED",
        "unit/test_recovery.py producer/test_tiers.py",
    ),
    Mutant(_RECOVERY, "if ahead < 0:", "if ahead < -1:", "unit/test_recovery.py"),
    # recipes
    Mutant(_STEPS, "if row == known.row:", "if True:", "recipes/test_late_take_over.py"),
    Mutant(
        _STEPS,
        "if passed_ms < bounded_ms - min(",
        "if True or passed_ms < bounded_ms - min(",
        "recipes/test_late_take_over.py recipes/test_dual_writer.py",
    ),
    Mutant(_STEPS, "if not write.database.commit_was_sent:", "if True:", "crash/test_lost_commit.py"),
    Mutant(
        _STEPS,
        "self._slot.state in (SlotState.OPEN, SlotState.DECIDING)",
        "self._slot.state in (SlotState.DECIDING,)",
        "recipes/test_dual_writer.py crash/test_split_brain.py",
    ),
    Mutant(
        _CORE_COMPLETION,
        "await _assert_still_locked(owned, database, row)\n        if is_open and await note",
        "if is_open and await note",
        "recipes/test_late_take_over.py",
    ),
    Mutant(_PUBLISHING, "await self._blocks.publish(write, waiting)", "pass", "recipes/test_outbox.py"),
    Mutant(
        _CORE_COMPLETION, "if is_current:", "if False:", "recipes/test_late_take_over.py recipes/test_dual_writer.py"
    ),
    Mutant(
        _CORE_COMPLETION,
        "row = await database.read(owned.transactional_id)",
        "row = await database.read(owned.transactional_id) if False else owned.row",
        "recipes/test_dual_writer.py crash/test_split_brain.py",
    ),
    Mutant(
        _CORE_COMPLETION,
        "await owned.database.make_durable(owned.transactional_id, row, timeout_ms=owned.resolve_timeout_ms)",
        "pass",
        "durability/test_synchronous_standby.py",
        proof=True,
    ),
    Mutant(
        _STORED_BLOCKS,
        "self._most_blocks = len(waiting.blocks) // 2",
        "pass",
        "recipes/test_refused_blocks.py::test_blocks_that_are_too_large_only_together_are_published",
    ),
    Mutant(
        _PUBLISHING,
        "if not row.is_empty and not is_settled(row, text) and not is_forgotten(row, text):",
        "if text and not is_settled(row, text) and not is_forgotten(row, text):",
        "recovery/test_another_cluster.py",
        proof=True,
    ),
    Mutant(
        _PUBLISHING,
        "if not row.is_empty and not is_settled(row, text) and not is_forgotten(row, text):",
        "if not row.is_empty and not is_settled(row, text):",
        "recovery/test_forgetting.py",
        proof=True,
    ),
    # repair
    Mutant(_STEPS, "await kafka.send((*owed, *ahead)", "await kafka.send((*ahead,)", "recipes/test_repair_owed.py"),
    Mutant(
        _STEPS,
        ("await kafka.send((*owed, *ahead), sent, any_size=True)\n            await kafka.send(write.records, sent)"),
        ("await kafka.send(write.records, sent)\n            await kafka.send((*owed, *ahead) or write.records, sent)"),
        "recipes/test_repair_owed.py",
    ),
    Mutant(_STEPS, "if new == previous:", "if False:", "recipes/test_repair_evidence.py"),
    Mutant(
        _PUBLISHING,
        "await self._settle(database, row)\n            return resolution",
        "return resolution",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(
        _CORE_COORDINATOR,
        "if self._slot.known.owed and write.records.has_offsets:",
        "if False:",
        "recipes/test_repair_owed.py",
    ),
    Mutant(
        _OWNED_ID,
        "                await self.leave_in_doubt(self.row)",
        "                self.slot.move(SlotState.READY, owed=())",
        "recipes/test_repair_owed.py",
    ),
    Mutant(_OWNED_ID, "self.slot.note(owed=())", "pass", "recipes/test_repair_owed.py"),
    Mutant(
        _CORE_COMPLETION,
        "if proof.is_known and not again:",
        "if False:",
        "recipes/test_repair.py::test_a_transaction_is_aborted_after_it_was_found_open",
    ),
    Mutant(
        _CORE_REPAIR,
        "if end.aborted:\n        return",
        "if end.committed:\n        return",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(_CORE_REPAIR, "if end.committed:", "if not end.aborted:", "recipes/test_repair_evidence.py"),
    Mutant(
        _MANIFEST,
        "manifest if manifest is not None and manifest.prepared_state == state else None",
        "manifest",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(
        _CORE_COMPLETION,
        "return not is_elsewhere(row, text,",
        "return True or is_elsewhere(row, text,",
        "recovery/test_another_cluster.py",
    ),
    Mutant(
        "dualwrite/recipes/core/hanging.py",
        'owned.inherited_from == cluster_id != ""',
        "True",
        "recipes/test_torn.py",
    ),
    Mutant(
        _CORE_REPAIR,
        "if is_settled(row, text):\n        return IS_OVER",
        "if text.startswith('committed '):\n        return IS_OVER",
        "recipes/test_repair_evidence.py",
    ),
    Mutant(
        _CORE_REPAIR,
        "if is_settled(row, text):\n        return ongoing == row",
        "if is_settled(row, text):\n        return False",
        "recovery/test_another_cluster.py",
    ),
    Mutant(
        _CORE_REPAIR,
        "if not is_forgotten(row, text):\n"
        "        raise manifest.elsewhere(cluster_id, owned.kafka_id)\n    return ongoing == row",
        "return is_forgotten(row, text) and ongoing == row",
        "recovery/test_another_cluster.py",
    ),
    Mutant(_CORE_REPAIR, "if manifest.has_offsets:", "if False:", "recipes/test_repair_evidence.py"),
    Mutant(_CORE_REPAIR, "if end.gone:", "if False:", "recipes/test_repair_evidence.py"),
    Mutant(_CORE_COMPLETION, "if proof.is_known:", "if False:", "recipes/test_torn.py"),
    Mutant(
        _CORE_REPAIR,
        "except NoMarkerError as error:\n        raise _hangs(owned, row, error) from error",
        "except NoMarkerError:\n        return KNOWN",
        "recipes/test_torn.py",
    ),
    Mutant(_CORE_REPAIR, "if not ongoing.is_empty:", "if False:", "recipes/test_torn.py"),
    Mutant(_CORE_REPAIR, "await owned.kafka.is_current()", "pass", "recipes/test_torn.py"),
    Mutant(
        _ACCUMULATOR,
        "batch.producer_epoch == queue.producer_epoch:",
        "batch.producer_epoch == producer_epoch:",
        "unit/test_batches.py",
    ),
    Mutant(_ACCUMULATOR, " or queue.producer_epoch != producer_epoch):", "):", "unit/test_batches.py"),
    Mutant(_PARTITION_QUEUE, " and self.doubtful is None", "", "unit/test_batches.py"),
    Mutant(_PARTITION_QUEUE, "self.queue.has_gap and ", "", "unit/test_batches.py"),
    Mutant(_ENDING, " or row.producer_epoch != producer_epoch:", ":", "recipes/test_torn.py"),
    Mutant(
        _LOG_ENDS, "if again.finding is Finding.OPEN or again.described.is_ending:", "if False:", "recipes/test_torn.py"
    ),
    Mutant(
        _PLAN, "frozenset({Finding.COMMITTED, Finding.ABORTED,", "frozenset({Finding.ABORTED,", "recovery/test_plan.py"
    ),
    Mutant(
        _INITIALISATION,
        "self._committed = described if described.is_committed else None",
        "self._committed = None",
        "recipes/test_torn.py",
    ),
    Mutant(_PLAN, "bool(end.aborted) and not end.gone", "bool(end.aborted)", "recovery/test_plan.py"),
    Mutant(
        _TRANSACTION_END,
        "_ENDS: Final = {Marker.COMMIT: PartitionEnd.COMMITTED, Marker.ABORT: PartitionEnd.ABORTED}",
        "_ENDS: Final = {Marker.COMMIT: PartitionEnd.ABORTED, Marker.ABORT: PartitionEnd.COMMITTED}",
        "recipes/test_repair.py::test_another_producer_holds_the_last_stable_offset",
    ),
    Mutant(
        _TRANSACTION_END,
        "if fetched.last_stable_offset <= self.part.last_offset:",
        "if False:",
        "recipes/test_repair.py::test_another_producer_holds_the_last_stable_offset",
    ),
    Mutant(
        _TRANSACTION_END,
        "if self._is_at_last_record or self._probes:",
        "if self._is_at_last_record:",
        "unit/test_transaction_end.py recipes/test_repair_evidence.py",
    ),
    Mutant(
        _TRANSACTION_END,
        "if producer_id == self._prepared.producer_id and first <= self.part.last_offset",
        "if first <= self.part.last_offset",
        "unit/test_transaction_end.py",
    ),
    Mutant(
        _COMMIT_MESSAGE,
        "connection.pgconn.consume_input()\n        connection.pgconn.consume_input()",
        "connection.pgconn.consume_input()",
        "recipes/test_psycopg.py::test_a_connection_that_the_server_has_ended_gets_no_commit",
    ),
    # the message that writes the row and commits
    Mutant(
        _POSTGRES,
        'f" AND {SAME_TABLE} AND {STILL_HELD} AND',
        'f" AND {SAME_TABLE} AND',
        "recipes/test_commit_message.py",
    ),
    Mutant(_POSTGRES, "CASE WHEN count(*) = 1 THEN", "CASE WHEN count(*) >= 0 THEN", "recipes/test_commit_message.py"),
    Mutant(
        _TRANSACTION, "self.commit_was_sent and not message.was_committed", "False", "recipes/test_commit_message.py"
    ),
    Mutant(
        _TRANSACTION, "self._assert_still_decides(self._is_still_written)", "pass", "recipes/test_commit_listeners.py"
    ),
    Mutant(_TRANSACTION, "if self._is_left_open:", "if False:", "recipes/test_commit_listeners.py"),
    Mutant(
        _TRANSACTION,
        "if message is not None and message.was_refused:",
        "if message is not None and not message.was_committed:",
        "crash/test_lost_commit.py",
    ),
    Mutant(
        _POSTGRES,
        'WHERE transactional_id = :id AND prepared_transaction_state = :previous"',
        'WHERE transactional_id = :id"',
        "recipes/test_commit_message.py",
    ),
    # broker
    Mutant(
        _TRANSITIONS,
        "producer_epoch=before.producer_epoch + 1,",
        "producer_epoch=before.producer_epoch,",
        "interop/raw_wire/test_end_txn.py",
    ),
    Mutant(
        _TRANSITIONS,
        "if is_bumped else before.producer_epoch + 1",
        "if is_bumped else before.producer_epoch",
        "emulator/wire/test_init_producer_id.py",
    ),
    Mutant(
        _TRANSITIONS,
        "if limit_reached else _bumped(client)",
        "if limit_reached else client",
        "emulator/wire/test_init_producer_id.py",
    ),
    Mutant(
        _TRANSACTIONS_COORDINATOR,
        "_S.ONGOING:         (_END,            _FENCED,         _END,            _FENCED),",
        "_S.ONGOING:         (_END,            _END,            _END,            _FENCED),",
        "interop/raw_wire/test_end_txn.py",
    ),
    Mutant(
        _TRANSACTIONS_COORDINATOR,
        "        return ErrorCode.producer_fenced",
        "        return NO_ERROR",
        "interop/raw_wire/test_end_txn.py",
    ),
    Mutant(_LAST_STABLE_OFFSET, "if self._open:", "if False:", "emulator/log/test_log_model.py"),
    Mutant(
        _PRODUCER_STATE,
        "if segment is not None and not commit:",
        "if segment is not None and commit:",
        "emulator/log/test_partition_log.py emulator/log/test_log_model.py",
    ),
    Mutant(
        _PRODUCER_STATE,
        "if header.producer_epoch >= last_epoch:",
        "if header.producer_epoch >= 0:",
        "interop/raw_wire/test_produce.py",
    ),
    Mutant(
        _PRODUCER_STATE,
        "if expected is not None and sequence != expected:",
        "if False:",
        "interop/raw_wire/test_produce.py",
    ),
    Mutant(_PRODUCER_STATE, "return entry.has_open_transaction", "return False", "emulator/wire/test_markers.py"),
    Mutant(
        _PRODUCER_STATE,
        "first_offset = entry.current_txn_first_offset",
        "pass",
        "interop/raw_wire/test_produce.py emulator/log/test_log_model.py",
    ),
    Mutant(
        _PRODUCER_STATE,
        "verification.guard is guard:",
        "verification.guard is not None:",
        "emulator/log/test_partition_log.py",
    ),
    # Spark
    Mutant(
        _RULES,
        "if attempt.status in CONDEMNABLE else",
        "if False else",
        "spark/test_protocol.py spark/test_commit_store.py spark/test_store_rules.py",
    ),
    Mutant(
        _STORE_FINISHING,
        "where(named, committing, self._attempt.c.prepared_state == str(old))",
        "where(named, committing)",
        "spark/test_commit_store.py",
    ),
    Mutant(
        _STORE_FINISHING,
        "where(named, committing, self._attempt.c.prepared_state == str(old))",
        "where(named, self._attempt.c.prepared_state == str(old))",
        "spark/test_commit_store.py",
    ),
    Mutant(
        _STORE_FINISHING,
        "for each, end in judged.items() if current.get(each) == str(end.judged)}",
        "for each, end in judged.items() if each in current}",
        "spark/test_commit_store.py",
    ),
    Mutant(
        _DRIVER_COMPLETION,
        "if row.state != claim.prepared_state and not producer.memory.knows(row.state):",
        "if False:",
        "spark/test_repair.py",
        proof=True,
    ),
    Mutant(
        _DRIVER_REPAIR,
        "if not decided:",
        "if False:",
        "spark/test_repair.py::test_an_operator_marks_the_batch_lost_during_a_repair",
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
