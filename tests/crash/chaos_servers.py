"""A database and a broker that are killed or frozen, and go on with their written data; slow ways to a broker."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.testing.postgres import PostgresServer
from tests.crash.small_disk import SmallDisk
from tests.support.forked_processes import processes
from tests.support.real_kafkas import Kind, real_kafka
from tests.support.servers.apache_kafka import PLAIN_LISTENER, ApacheKafka
from tests.support.servers.ports import free_port

DEADLINE_S = 60.0
HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 65536


class KillablePostgres:
    """A server that `PostgresServer` has started on this machine."""

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.url
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            self._data = Path(str(connection.scalar(sa.text("SHOW data_directory"))))
        process = Path("/proc") / str(self._pid())
        self._command = (process / "cmdline").read_bytes().split(b"\0")[:-1]
        self._directory = (process / "cwd").readlink()
        self._user = process.stat().st_uid
        self._restarted: subprocess.Popen[bytes] | None = None
        self._disk: SmallDisk | None = None

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def allow_connections(self, number: int) -> None:
        """So many at a time, from now on."""
        self._command += [b"-c", f"max_connections={number}".encode()]
        self.kill()
        self.start_again()

    def kill(self) -> None:
        os.kill(self._pid(), signal.SIGKILL)
        if self._restarted is not None:
            self._restarted.wait()

    def start_again(self) -> None:
        """It refuses while processes of the killed server live; they soon notice its end."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            self._restarted = subprocess.Popen(
                self._command,
                cwd=self._directory,
                user=self._user if os.geteuid() == 0 else None,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while self._restarted.poll() is None:
                if self._answers():
                    return
                assert time.monotonic() < deadline_s, "Postgres does not come back"
                time.sleep(0.05)

    def move_to_small_disk(self, spare_bytes: int) -> None:
        """Put its data on a disk with so many bytes free, from now on."""
        self.kill()
        self._disk = SmallDisk(self._data, spare_bytes)
        self.start_again()

    @property
    def has_small_disk(self) -> bool:
        return self._disk is not None

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Leave its small disk no room while the block runs; then it works again, also if that has ended it."""
        assert self._disk is not None
        with self._disk.full():
            yield
        self._come_back()

    def _come_back(self) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not self._answers():
            if self._is_gone():
                self.start_again()
            assert time.monotonic() < deadline_s, "Postgres does not come back"
            time.sleep(0.05)

    def _is_gone(self) -> bool:
        if self._restarted is not None:
            return self._restarted.poll() is not None
        return not Path(f"/proc/{self._pid()}").exists()

    def freeze(self) -> None:
        """Stop the postmaster and every process of it, until `thaw`."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        postmaster = self._pid()
        for pid in (postmaster, *_children(postmaster)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _answers(self) -> bool:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with suppress(sa.exc.OperationalError), engine.connect():
            return True
        return False

    def stop(self) -> None:
        """Stop the servers started here; `PostgresServer` sees to the others."""
        if self._restarted is not None and self._restarted.poll() is None:
            self._restarted.send_signal(signal.SIGINT)
            self._restarted.wait(DEADLINE_S)
        if self._disk is not None:
            self._disk.unmount()


def _children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in found.split()]


class Lane:
    """A way of its own to the broker: a process that relays one listener, and can be frozen with its requests.

    Requests sent into it arrive after the thaw, however late, and even if the sender is gone.
    """

    def __init__(self, number: int) -> None:
        self.listener: Final = f"LANE{number}"
        self.port: Final = free_port()
        self._process: BaseProcess | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def open(self, target_port: int) -> None:
        self._process = processes().Process(target=_relay, args=(self.port, target_port))
        self._process.start()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def _relay(port: int, target_port: int) -> None:
    asyncio.run(_relay_all(port, target_port))


async def _relay_all(port: int, target_port: int) -> None:
    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection(HOST, target_port)
        except OSError:
            to_client.close()
            return
        await asyncio.gather(_pump(client, to_server), _pump(server, to_client))

    async with await asyncio.start_server(serve, HOST, port) as listener:
        await listener.serve_forever()


async def _pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            to.write(data)
            await to.drain()
    to.close()


class KillableEmulator:
    """The emulator in a process of its own, on disk, always at the same address.

    `settings` are those of the broker by Kafka's names; each lane gets a listener of its own.
    """

    def __init__(
        self,
        directory: Path,
        topic: str,
        partitions: int,
        *,
        settings: Mapping[str, str] | None = None,
        lanes: tuple[Lane, ...] = (),
    ) -> None:
        self._directory = directory
        self._topic = f"{topic}:{partitions}"
        self._settings = dict(settings or {})
        if lanes:
            self._settings |= _listeners(lanes)
        self._process = self._start(f"{HOST}:0")
        assert self._process.stdout is not None
        self.bootstrap_servers = self._process.stdout.readline().strip()

    def _start(self, address: str) -> subprocess.Popen[str]:
        where = () if "listeners" in self._settings else ("--listen", address)
        settings = [text for name, value in self._settings.items() for text in ("--config", f"{name}={value}")]
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "dualwrite.broker_emulator", *where, *settings),
                *("--data-dir", str(self._directory), "--topic", self._topic),
            ],
            stdout=subprocess.PIPE,
            stderr=(self._directory.parent / "emulator.log").open("a"),
            text=True,
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        self._process = self._start(self.bootstrap_servers)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.bootstrap_servers, "the emulator does not come back"

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)


def _listeners(lanes: tuple[Lane, ...]) -> dict[str, str]:
    """Settings of a broker with a plain listener and one for each lane, which is opened here."""
    plain = f"PLAINTEXT://{HOST}:{free_port()}"
    behind = {lane: free_port() for lane in lanes}
    for lane, port in behind.items():
        lane.open(port)
    return {
        "listeners": ",".join([plain, *(f"{lane.listener}://{HOST}:{port}" for lane, port in behind.items())]),
        "advertised.listeners": ",".join([plain, *(f"{lane.listener}://{lane.address}" for lane in lanes)]),
        "listener.security.protocol.map": ",".join(
            ["PLAINTEXT:PLAINTEXT", *(f"{lane.listener}:PLAINTEXT" for lane in lanes)]
        ),
    }


class KillableKafka:
    """A real Apache Kafka of its own, always at the same addresses, with a listener for each lane."""

    def __init__(self, kind: Kind, topic: str, partitions: int, *, lanes: tuple[Lane, ...] = ()) -> None:
        listeners = {**PLAIN_LISTENER, **{lane.listener: "PLAINTEXT" for lane in lanes}}
        self._kafka: ApacheKafka = real_kafka(kind, listeners=listeners).start()
        self.bootstrap_servers = self._kafka.bootstrap_servers
        try:
            self._send_clients_through(lanes)
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)
        except BaseException:
            self.stop()
            raise

    def _send_clients_through(self, lanes: tuple[Lane, ...]) -> None:
        """Its ports are known once it has run; it reads the advertised addresses when it starts again."""
        told = [f"PLAINTEXT://{self.bootstrap_servers}"]
        for lane in lanes:
            lane.open(int(self._kafka.address(lane.listener).rpartition(":")[2]))
            told.append(f"{lane.listener}://{lane.address}")
        settings = self._kafka.log_path.parent / "server.properties"
        self._kafka.kill()
        with settings.open("a") as file:
            file.write(f"advertised.listeners={','.join(told)}\n")
        self._kafka.start()

    def keep(self, directory: Path) -> None:
        """Copy its settings, its log and its data: the partitions' logs show the broker's actions."""
        shutil.copytree(self._kafka.log_path.parent, directory)

    def kill(self) -> None:
        self._kafka.kill()

    def start_again(self) -> None:
        self._kafka.start()

    def freeze(self) -> None:
        os.kill(self._kafka.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._kafka.pid, signal.SIGCONT)

    def stop(self) -> None:
        self._kafka.stop()
