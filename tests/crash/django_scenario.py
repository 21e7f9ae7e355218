"""The crash tests' dual write in `transaction.atomic()` of Django."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import sqlalchemy as sa
from django.core.management import call_command
from django.db import DatabaseError, connections, transaction

from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.core.slot import SlotState
from tests.crash.scenario import LIMITS, POINTS_BEFORE_WRITE_AND_COMMIT, ScenarioOf, Seen, event_texts
from tests.django.project import INSERT, add_alias, drop_alias, pool_on
from tests.recipes.pools import QUIET_LEASE_MS, AnyPool, LeaseTable
from tests.support.conditions import until
from tests.support.databases import unique


def add_django_alias(
    alias: str,
    url: sa.URL,
    bootstrap_servers: str,
    transactional_id: str,
    pause: PauseHook | None = None,
    **settings: Any,
) -> None:
    """Add a database whose pool has `transactional_id` as its first slot."""
    given = {"bootstrap_servers": bootstrap_servers, "lease_ms": QUIET_LEASE_MS, **LIMITS, "pause": pause, **settings}
    add_alias(
        alias, url, {"prefix": transactional_id.removesuffix("-0"), **given}, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True
    )


def write_django_events(alias: str, topic: str, number: int) -> Seen:
    """Write like `write_events`, in a request of its own."""
    from dualwrite.recipes.django import current_dual_write, send

    connections[alias].close_if_unusable_or_obsolete()  # as at the beginning of a request
    write: DualWrite | None = None
    try:
        with transaction.atomic(using=alias):
            for index, body in enumerate(event_texts(str(number))):
                with connections[alias].cursor() as cursor:
                    cursor.execute(INSERT, (number * 10 + index, body))
                send(topic, value=body, key="k", using=alias)
            write = current_dual_write(alias)
    except Exception as error:
        return Seen(error, write.outcome if write else None)
    return Seen(None, write.outcome)


class DjangoWriter:
    """A process with Django, as far as the scenarios are concerned: an alias, and its recovery."""

    def __init__(self, alias: str, leases: LeaseTable, *, by_command: bool) -> None:
        self.alias = alias
        self._leases = leases
        self._by_command = by_command

    @property
    def pool(self) -> AnyPool:
        return pool_on(self.alias)

    def recover(self) -> None:
        """Recover a dead process's leftovers, as its lease expires or as an operator asks for it."""
        if self._by_command:
            call_command("dualwrite_recover", database=self.alias, apply=True, min_age=0.0, stdout=sys.stdout)
        else:
            self._leases.expire()
            self.pool.recover()

    @property
    def state(self) -> SlotState:
        """READY, as soon as the background has resolved the slots set aside."""
        until(lambda: not self.pool.status.set_aside)
        return SlotState.READY

    def close(self) -> None:
        if self.alias in connections.settings:
            drop_alias(self.alias)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class DjangoScenario(ScenarioOf[DjangoWriter]):
    """A scenario whose writers are aliases of Django."""

    by_command: bool = False
    writers: list[DjangoWriter] = field(default_factory=list)
    """All of them: some stand for a process that is gone, and are closed by no one else."""
    database_error = DatabaseError

    def __post_init__(self) -> None:
        super().__post_init__()
        self._leases = LeaseTable(self)

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        if self.database.engine.dialect.name == "postgresql":
            return POINTS_BEFORE_WRITE_AND_COMMIT
        return super().points_before_commit_request

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> DjangoWriter:
        alias = unique("crashed").replace("-", "_")
        url = self.database.engine.url
        add_django_alias(alias, url, self.emulator.bootstrap_servers, self.transactional_id, pause=pause, **settings)
        made = DjangoWriter(alias, self._leases, by_command=self.by_command)
        self.writers.append(made)
        return made

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def write_events(self, writer: DjangoWriter, number: int) -> Seen:
        return write_django_events(writer.alias, self.topic, number)
