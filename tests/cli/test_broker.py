"""`dualwrite broker`: the emulator."""

from __future__ import annotations

import signal
import subprocess
import sys

from dualwrite.admin import TransactionAdmin, TwoPhaseCommit
from tests.cli.conftest import assert_one_line, ended, process


def test_a_broker_of_a_released_kafka_serves_until_it_is_told_to_stop() -> None:
    running = process("broker", "--nodes", 2, "--topic", "orders:3")
    try:
        assert running.stdout is not None
        address = running.stdout.readline().strip()
        with TransactionAdmin(bootstrap_servers=address) as admin:
            assert len(admin.describe_cluster().brokers) == 2
            assert admin.describe_two_phase_commit() == dict.fromkeys((0, 1), TwoPhaseCommit.NOT_OFFERED)
    finally:
        running.send_signal(signal.SIGTERM)
        done = ended(running)
    assert done.code == 0


def test_wrong_usage() -> None:
    said = "dualwrite broker: Invalid value for '--nodes': 0 is less than 1"
    assert_one_line(ended(process("broker", "--nodes", "0")), 2, said)


def test_without_the_extra_the_command_names_it() -> None:
    absent = "import sys; sys.modules['dualwrite.broker_emulator'] = None; sys.argv = ['dualwrite', 'broker']"
    code = f"{absent}; from dualwrite.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "dualwrite: the broker is not installed: pip install 'dualwrite[emulator]'\n"
    assert done.returncode == 1
