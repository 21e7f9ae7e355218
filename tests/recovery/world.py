"""Helpers: transactions that dead processes left open, and recovery services."""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.producer import Producer
from dualwrite.recipes.recovery.service import RecoveryService
from tests.crash.scenario import AnyScenario


def service(scenario: AnyScenario, **settings: Any) -> RecoveryService:
    """Return a service for the scenario's id, without a minimum age."""
    given: dict[str, Any] = {"transactional_ids": [scenario.transactional_id], "min_age_ms": 0, "timeout_ms": 20_000}
    given |= settings
    return RecoveryService(scenario.database.engine, bootstrap_servers=scenario.emulator.bootstrap_servers, **given)


def left_open(emulator: Emulator, transactional_id: str, topic: str, *, two_phase_commit: bool = True) -> None:
    """Leave the open transaction of a dead process that uses no database."""
    producer = Producer(
        bootstrap_servers=emulator.bootstrap_servers,
        transactional_id=transactional_id,
        transaction_two_phase_commit_enable=two_phase_commit,
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, value=b"orphan", partition=0)
    producer.flush()
    producer.close(timeout_s=0)
