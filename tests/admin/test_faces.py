"""The two admin clients, blocking and asynchronous: settings, closing, and arguments refused before any request."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from typing import Any

import pytest

from dualwrite.admin import AsyncTransactionAdmin, TopicPartition, TransactionAdmin
from dualwrite.broker_emulator import Emulator, Fault, Hold
from dualwrite.client.io_thread import shared_io_thread
from dualwrite.errors import ConfigError, IllegalStateError
from tests.admin.site import Site

PARTITION = TopicPartition("t", 0)


def calls(face: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in vars(face).items()
        if not name.startswith("_") and callable(member)
    }


def test_both_faces_have_the_same_calls() -> None:
    assert calls(TransactionAdmin) == calls(AsyncTransactionAdmin)


def test_both_clients_get_the_same_results(kip_939: Site, admin: TransactionAdmin) -> None:
    topic = kip_939.new_topic()
    ids = list(kip_939.ids_by_state(topic).values())
    partition = TopicPartition(topic, 0)

    async def ask() -> list[Any]:
        async with AsyncTransactionAdmin({"bootstrap.servers": kip_939.bootstrap_servers}) as by_coroutine:
            return list(
                await asyncio.gather(
                    by_coroutine.list_transactions(producer_ids=[1, 2]),
                    by_coroutine.transactions_of_prefix(ids[0]),
                    by_coroutine.describe_transactions(ids),
                    by_coroutine.describe_transaction(ids[0]),
                    by_coroutine.describe_producers([partition]),
                    by_coroutine.find_hanging(topic),
                    by_coroutine.describe_cluster(),
                    by_coroutine.describe_features(),
                )
            )

    assert asyncio.run(ask()) == [
        admin.list_transactions(producer_ids=[1, 2]),
        admin.transactions_of_prefix(ids[0]),
        admin.describe_transactions(ids),
        admin.describe_transaction(ids[0]),
        admin.describe_producers([partition]),
        admin.find_hanging(topic),
        admin.describe_cluster(),
        admin.describe_features(),
    ]


def test_an_admin_client_belongs_to_one_loop(kip_939: Site) -> None:
    by_coroutine = AsyncTransactionAdmin(bootstrap_servers=kip_939.bootstrap_servers)

    async def use() -> None:
        await by_coroutine.describe_cluster()

    async def use_and_close() -> None:
        with pytest.raises(IllegalStateError, match="belongs to another event loop"):
            await use()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    asyncio.run(use_and_close())
    loop.run_until_complete(by_coroutine.close())
    loop.close()


def test_a_call_without_keys_sends_nothing(kip_939: Site, admin: TransactionAdmin) -> None:
    assert admin.describe_transactions([]) == {}
    assert admin.describe_producers([]) == {}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda admin: admin.list_transactions(states=["Onging"]), ValueError, "Onging"),
        (
            lambda admin: admin.list_transactions(states="Ongoing"),
            TypeError,
            "a list, not the str 'Ongoing'",
        ),
        (lambda admin: admin.describe_transactions("x"), TypeError, "must be a list, not the str 'x'"),
        (lambda admin: admin.find_hanging(partition=1), ValueError, "needs its topic"),
        (lambda admin: admin.abort_transaction(PARTITION), ValueError, "takes start_offset, or"),
        (lambda admin: admin.abort_transaction(PARTITION, producer_id=1), ValueError, "takes start_offset, or"),
        (
            lambda admin: admin.abort_transaction(PARTITION, start_offset=1, producer_id=1),
            ValueError,
            "takes start_off",
        ),
    ],
)
def test_contradictory_arguments_are_refused(
    kip_939: Site, admin: TransactionAdmin, call: Any, error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        call(admin)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="is missing"):
        TransactionAdmin()
    with pytest.raises(ConfigError, match="unknown setting"):
        AsyncTransactionAdmin(bootstrap_servers="h:1", acks="all")  # type: ignore[call-arg]


def test_after_the_end(kip_939: Site) -> None:
    admin = TransactionAdmin(bootstrap_servers=kip_939.bootstrap_servers)
    admin.describe_cluster()
    admin.close()
    admin.close()
    with pytest.raises(IllegalStateError, match="is closed"):
        admin.describe_cluster()


def test_closing_ends_the_calls_that_wait(emulator: Emulator) -> None:
    admin = TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers)
    admin.describe_cluster()
    held = emulator.faults.add(Fault(api="ListTransactions", count=None, action=Hold()))
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            admin.list_transactions(timeout_ms=20_000)
        except Exception as error:
            errors.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    held.wait_held(1)
    admin.close()
    caller.join(60)
    assert [type(error) for error in errors] == [IllegalStateError]


def test_unclosed_clients_are_warned_of(kip_939: Site) -> None:
    admin = TransactionAdmin(bootstrap_servers=kip_939.bootstrap_servers)
    admin.describe_cluster()
    made = [admin]
    del admin
    with pytest.warns(ResourceWarning, match="was not closed"):
        made.clear()


def test_unclosed_clients_of_coroutines_are_warned_of(kip_939: Site) -> None:
    async def forget() -> None:
        made = [AsyncTransactionAdmin(bootstrap_servers=kip_939.bootstrap_servers)]
        await made[0].describe_cluster()
        with pytest.warns(ResourceWarning, match="was not closed"):
            made.clear()
        await asyncio.sleep(0)

    asyncio.run(forget())


def test_closing_does_not_wait_for_ever(
    kip_939: Site, admin: TransactionAdmin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The I/O thread stood still for longer: earlier calls have succeeded, and so does closing."""
    monkeypatch.setattr("dualwrite.admin._CLOSE_TIMEOUT_S", 0.01)
    go_on = threading.Event()
    admin.describe_cluster()
    shared_io_thread().loop.call_soon_threadsafe(go_on.wait)
    try:
        admin.close()
    finally:
        go_on.set()
    assert "the connections did not close within 0.01 s" in caplog.text


def test_the_io_thread_does_not_wait_for_itself(kip_939: Site, admin: TransactionAdmin) -> None:
    async def ask() -> None:
        admin.describe_cluster()

    asked = asyncio.run_coroutine_threadsafe(ask(), shared_io_thread().loop)
    with pytest.raises(IllegalStateError, match="use AsyncTransactionAdmin"):
        asked.result(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_makes_its_own_connections(kip_939: Site, admin: TransactionAdmin) -> None:
    admin.describe_cluster()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            admin.describe_cluster()
        except IllegalStateError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"the process before the fork" in os.read(read, 1000)
    os.close(read)
    os.close(write)
    assert admin.describe_cluster().brokers
