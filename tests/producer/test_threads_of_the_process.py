"""Threads that outlive the main thread, and time that stands still."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dualwrite.broker_emulator import Emulator, Error, Fault

LATE = """
import sys, threading, time
if not {uvloop}:
    sys.modules["uvloop"] = None
import dualwrite

def late():
    while not threading._SHUTTING_DOWN or not getattr(sys.modules.get("concurrent.futures.thread"), "_shutdown", True):
        time.sleep(0.001)
    {steps}
    print("sent")

threading.Thread(target=late).start()
"""
IN_THREAD = "with dualwrite.Producer(bootstrap_servers={servers!r}) as p: p.send('t', b'x').result(60)"
IN_LOOP = """
    import asyncio
    async def main():
        async with dualwrite.AsyncProducer(bootstrap_servers={servers!r}) as producer:
            await (await producer.send("t", b"x"))
    asyncio.run(main())
"""


@pytest.mark.parametrize(("uvloop", "steps"), [(True, IN_THREAD), (False, IN_LOOP)], ids=["uvloop", "asyncio"])
def test_a_producer_that_is_made_after_the_main_thread_has_ended(uvloop: bool, steps: str) -> None:
    with Emulator(topics={"t": 1}, listen="localhost:0") as emulator:
        program = LATE.format(uvloop=uvloop, steps=steps.format(servers=emulator.bootstrap_servers))
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (ran.stdout, ran.stderr, ran.returncode) == ("sent\n", "", 0)
        assert [record.value for record in emulator.records("t")] == [b"x"]


FROZEN = """
import sys, time
if not {uvloop}:
    sys.modules["uvloop"] = None
time.monotonic = lambda began=time.monotonic(): began  # as libraries do that freeze time
import dualwrite
with dualwrite.Producer(bootstrap_servers={servers!r}, linger_ms=20, retry_backoff_ms=20) as producer:
    producer.send("t", b"x").result(60)
print("sent")
"""


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_waits_end_where_a_test_has_frozen_time(uvloop: bool) -> None:
    with Emulator(topics={"t": 1}) as emulator:
        emulator.faults.add(Fault(api="Produce", action=Error("NOT_ENOUGH_REPLICAS")))
        program = FROZEN.format(uvloop=uvloop, servers=emulator.bootstrap_servers)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (ran.stdout, ran.stderr, ran.returncode) == ("sent\n", "", 0)
