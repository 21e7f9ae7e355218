"""RocksDB: writes that fail, writers side by side in one process, and the limits of a block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from dualwrite import Direct
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import ConfigError, IllegalStateError, OutcomeUnknown, RowLockTimeoutError, TransactionDoomedError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PausePoint
from examples.rocksdb_writer import RocksDbDualTransaction, RocksDbDualWriter, _RocksDbStore
from tests.crash.key_value_scenario import KeyValueScenario
from tests.crash.scenario import AtPoint
from tests.support.key_value_stores import RocksDbStore, in_directory


class FailingDisk:
    """A database whose writes fail on command, after they were carried out or before."""

    def __init__(self, db: Rdict) -> None:
        self._db = db
        self.failing = False
        self.carries_out_once = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def write(self, batch: Any, options: Any) -> None:
        if self.failing:
            if self.carries_out_once:
                self.carries_out_once = False
                self._db.write(batch, options)
            raise Exception("IO error: No space left on device")
        self._db.write(batch, options)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDbStore]:
    made = in_directory(tmp_path)
    yield made
    made.close()


@pytest.fixture
def scenario(store: RocksDbStore, emulator: Emulator) -> KeyValueScenario:
    return KeyValueScenario(store, emulator)


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("execute_query", [True, False])
def test_nothing_is_concluded_while_writes_fail(
    store: RocksDbStore, scenario: KeyValueScenario, execute_query: bool
) -> None:
    """A read then may differ from the log's contents after a restart."""
    disk = FailingDisk(store.db)

    def fail() -> None:
        disk.failing, disk.carries_out_once = True, execute_query

    store.db = disk  # type: ignore[assignment]
    with scenario.writer(AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, fail)) as writer:
        assert isinstance(scenario.write(writer, 1).error, OutcomeUnknown)
        disk.failing = False
        assert [found.outcome for found in writer.recover()] == [
            Outcome.COMMITTED if execute_query else Outcome.ROLLED_BACK
        ]
        scenario.expected = ["1/0", "1/1"] if execute_query else []
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


def test_a_write_that_fails_after_earlier_ones_were_superseded_counts(store: RocksDbStore) -> None:
    """The new failure comes after the write that supersedes earlier ones, and before the note about it."""
    disk = FailingDisk(store.db)
    shop, bank = (_RocksDbStore(disk, raw_mode=False) for _ in range(2))  # type: ignore[arg-type]
    for made in (shop, bank):
        blocking.run(made.ensure_row("id"))
    fail_to_write(disk, bank)
    rewrite = shop.rewrite

    def rewrite_and_let_bank_fail(transactional_id: str, text: str) -> None:
        rewrite(transactional_id, text)
        fail_to_write(disk, bank)

    shop.rewrite = rewrite_and_let_bank_fail  # type: ignore[method-assign]
    shop.supersede_failures("id")
    disk.failing = True
    with pytest.raises(Exception, match="No space left"):
        bank.supersede_failures("id")  # it has to write before a read may decide


def fail_to_write(disk: FailingDisk, store: _RocksDbStore) -> None:
    disk.failing = True
    with pytest.raises(Exception, match="No space left"):
        store.write_durably(store.new_batch())
    disk.failing = False


def test_another_writer_of_the_process_waits_its_turn(scenario: KeyValueScenario) -> None:
    with scenario.writer(lock_timeout_ms=20) as impatient, scenario.writer() as patient:

        def try_to_recover() -> None:
            with pytest.raises(RowLockTimeoutError):
                impatient.recover()

        with scenario.writer(AtPoint(PausePoint.AFTER_PREPARE, try_to_recover)) as writer:
            assert scenario.write(writer, 1).error is None
        assert patient.recover() == []
    scenario.assert_both_sides_agree()


def test_a_block_deletes_a_key_and_puts_another(store: RocksDbStore, scenario: KeyValueScenario) -> None:
    store.db["old"] = "value"
    elsewhere = store.db.create_column_family("elsewhere")
    with scenario.writer() as writer, writer.transaction() as tx:
        tx.delete("old")
        tx.put("k", "v", column_family="elsewhere")
        assert store.db["old"] == "value"
    assert "old" not in store.db
    assert elsewhere["k"] == "v"
    with pytest.raises(IllegalStateError, match="has ended"):
        tx.put("late", "value")


def test_a_refused_record_that_is_swallowed_dooms_the_block(scenario: KeyValueScenario) -> None:
    with scenario.writer() as writer, pytest.raises(TransactionDoomedError), writer.transaction() as tx:
        tx.put("k", "v")
        with pytest.raises(ValueError):
            tx.send(scenario.topic, value=5)
    scenario.assert_both_sides_agree()


def test_a_database_in_raw_mode(tmp_path: Path, emulator: Emulator) -> None:
    db = Rdict(str(tmp_path / "raw"), Options(raw_mode=True))
    emulator.create_topic("raw")
    with RocksDbDualWriter(
        db, raw_mode=True, bootstrap_servers=emulator.bootstrap_servers, transactional_id="raw"
    ) as writer:
        for value in (b"1", b"2"):
            with writer.transaction() as tx:
                tx.put(b"k", value)
                tx.send("raw", value=value)
    assert db[b"k"] == b"2"
    db.close()


def test_a_decorated_call_joins_the_block(store: RocksDbStore, scenario: KeyValueScenario) -> None:
    with scenario.writer() as writer:

        @writer.transactional
        def place(tx: RocksDbDualTransaction, value: int) -> None:
            tx.put("lamps", value)
            tx.send(scenario.topic, key="k", value=str(value))

        with writer.transaction():
            place(1)
        with pytest.raises(ConfigError, match="has no savepoints"):
            writer.transactional(inside="savepoint")
    assert store.db["lamps"] == 1


@pytest.mark.parametrize("setting", [{"prefix": "a"}, {"delivery": Direct()}, {"create_table": False}, {"schema": "b"}])
def test_settings_without_an_effect_are_refused(setting: dict[str, Any]) -> None:
    made: Any = RocksDbDualWriter
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} cannot be set here"):
        made(None, bootstrap_servers="127.0.0.1:1", **setting)
    with pytest.raises(ConfigError, match="transactional_id takes a text of 1 to 255 characters, not None"):
        made(None, bootstrap_servers="127.0.0.1:1")
