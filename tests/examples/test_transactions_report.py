"""The report of open and hanging transactions."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import BrokerConfig, Emulator, Error, Fault
from dualwrite.producer import Producer
from examples.transactions_report import report
from tests.interop.wire import Identity, Wire, record_batch
from tests.support.conditions import until


def test_the_report() -> None:
    config = BrokerConfig(transaction_partition_verification_enable=False)
    with Emulator(config=config, topics={"orders": 2}) as broker:
        servers = broker.bootstrap_servers
        with TransactionAdmin(bootstrap_servers=servers) as admin:
            assert report(admin) == (["no transaction is open"], True)
            with Producer(
                bootstrap_servers=servers, transactional_id="a", transaction_two_phase_commit_enable=True
            ) as owner:
                owner.init_transactions()
                owner.begin_transaction()
                owner.send("orders", value=b"1", partition=0)
                owner.prepare_transaction()
                lines, all_is_well = report(admin)
                assert all_is_well
                (line,) = lines
                assert re.fullmatch(
                    r"a: Ongoing for \d+ s on orders-0, has no timeout, producer \d+ epoch \d+", line
                ), line
                with Wire(servers) as wire:
                    batch = record_batch(
                        [b"v"], Identity(4711, 0), 0, transactional=True, timestamp_ms=1_600_000_000_000
                    )
                    wire.produce_bytes("nobody", "orders", batch, partition=1, version=11)
                lines, all_is_well = report(admin)
                assert not all_is_well
                assert lines[1].startswith(
                    "HANGING on orders-1 since offset 0: producer 4711 epoch 0, id unknown, last"
                )
                owner.abort_transaction()
        broker.faults.add(Fault(api="ListTransactions", count=None, action=Error(15)))
        with TransactionAdmin(bootstrap_servers=servers, default_api_timeout_ms=2_000) as admin:
            until(lambda: cannot_list(admin))


def cannot_list(admin: TransactionAdmin) -> bool:
    """Return whether the report names the broker's error, which a busy machine may not meet in time."""
    lines, all_is_well = report(admin)
    assert not all_is_well
    return any(re.match("not seen: broker 0 returned .* for ListTransactions", line) for line in lines)


@pytest.mark.parametrize(("arguments", "status"), [([], 1), (None, 0)])
def test_the_command(emulator: Emulator, arguments: list[str] | None, status: int) -> None:
    given = [emulator.bootstrap_servers] if arguments is None else arguments
    done = subprocess.run(
        [sys.executable, "-m", "examples.transactions_report", *given],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == status
    assert ("no transaction is open" in done.stdout) is (status == 0)
