"""A process of the chaos test that ends transactions of others by hand, decided or not, and erases how they ended."""

from __future__ import annotations

import os
import random
import threading
from typing import Any, Final

from dualwrite.admin import TransactionAdmin
from dualwrite.errors import DualWriteError
from dualwrite.producer import Producer
from tests.crash.chaos_job import NICENESS, Job, Journal, Orders

OPERATOR: Final = "operator"
TIMEOUT_MS: Final = 5_000
LONGEST_PAUSE_S: Final = 0.6


class Operator:
    """Ends an open transaction after the other, each in one of two ways."""

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self._name = name
        self._chance = random.Random(name)
        self._journal = Journal(job, name)

    def work(self, stopped: threading.Event) -> None:
        with TransactionAdmin(
            bootstrap_servers=self._job.bootstrap_servers, default_api_timeout_ms=TIMEOUT_MS
        ) as admin:
            while not stopped.wait(self._chance.uniform(0, LONGEST_PAUSE_S)):
                try:
                    self._end_one(admin)
                except DualWriteError as error:
                    self._journal.note(self._name, "failed", repr(error))

    def _end_one(self, admin: TransactionAdmin) -> None:
        listed = admin.list_transactions(states=["Ongoing"])
        ids = [each.transactional_id for each in listed if each.transactional_id.startswith(self._job.prefix)]
        if not ids:
            return
        transactional_id = self._chance.choice(ids)
        if self._chance.random() < 0.5:
            admin.force_terminate_transaction(transactional_id)
            self._journal.note(self._name, "terminated", transactional_id)
        else:
            self._initialise(transactional_id)
            self._journal.note(self._name, "initialised", transactional_id)

    def _initialise(self, transactional_id: str) -> None:
        """As another program would that uses the id: it leaves no trace of how the transaction ended."""
        producer = Producer(
            bootstrap_servers=self._job.bootstrap_servers, transactional_id=transactional_id, max_block_ms=TIMEOUT_MS
        )
        try:
            producer.init_transactions()
        finally:
            producer.close(timeout_s=0)


def work_as_operator(job: Job, name: str, kind: str, orders: Any) -> None:
    """End transactions of others until told to stop."""
    os.nice(NICENESS)
    stopped = threading.Event()
    threading.Thread(target=Orders(orders).obey, args=(stopped.set,), daemon=True).start()
    Operator(job, name).work(stopped)
