"""The broker emulator as a container of Testcontainers: `pip install 'dualwrite[testcontainers]'`.

    with DualwriteBrokerContainer().with_topic("orders", 3) as broker:
        run_the_service(broker.get_bootstrap_server())
        assert [record.value for record in broker.control.records("orders")] == [b"lamp"]

If Python runs anyway, `kafka_emulator` of the pytest plugin starts faster and needs no Docker. The container is for
suites that start all services as containers, and for services in containers of their own.
"""

from __future__ import annotations

import io
import tarfile
import time
from typing import Final, Self

from testcontainers.core.container import DockerContainer

from dualwrite.testing.control_client import ControlClient, ControlClientError

IMAGE: Final = "dualwrite-broker:latest"
"""The image that `docker build -f examples/broker_service/Containerfile -t dualwrite-broker .` builds."""

_KAFKA_PORT: Final = 9092
_CONTROL_PORT: Final = 9644
_LISTENER: Final = "advertised-listener"
_READY: Final = "advertised-listener-is-there"
_STEP_S: Final = 0.1

# The host's port for the broker is known only when the container runs, so the broker starts when it gets the port.
_SCRIPT: Final = f"""\
until [ -e /tmp/{_READY} ]; do sleep 0.1; done
exec /opt/dualwrite/bin/python -m dualwrite.broker_emulator "$@" \
--config advertised.listeners="$(cat /tmp/{_LISTENER})"
"""


class BrokerContainerError(RuntimeError):
    """The container runs, but its broker does not serve; the message has its log."""


class DualwriteBrokerContainer(DockerContainer):
    """One broker with control over HTTP, all in memory. `image` is built from the repository's Containerfile."""

    def __init__(self, image: str = IMAGE, *, start_timeout_s: float = 60.0) -> None:
        super().__init__(image)
        self._start_timeout_s = start_timeout_s
        self._arguments = ["--config", f"listeners=PLAINTEXT://0.0.0.0:{_KAFKA_PORT}"]
        self._arguments += ["--control", f"0.0.0.0:{_CONTROL_PORT}"]
        self.with_exposed_ports(_KAFKA_PORT, _CONTROL_PORT)
        self.with_kwargs(entrypoint=["sh", "-c", _SCRIPT, "broker"])

    def with_topic(self, name: str, partitions: int = 1) -> Self:
        """Create a topic before the first client connects; others are created at their first use."""
        self._arguments += ["--topic", f"{name}:{partitions}"]
        return self

    def with_broker_config(self, name: str, value: str) -> Self:
        """Set a setting by Kafka's name."""
        self._arguments += ["--config", f"{name}={value}"]
        return self

    def with_virtual_clock(self) -> Self:
        """Let the broker's time stand still until `control.advance_clock(...)`."""
        self._arguments += ["--clock", "virtual"]
        return self

    def start(self) -> Self:
        """Start the container, and wait until its broker serves. Raises BrokerContainerError if it does not."""
        self.with_command(list(self._arguments))
        super().start()
        try:
            control = self.control
            self.get_wrapped_container().put_archive("/tmp", _archive(f"PLAINTEXT://{self.get_bootstrap_server()}"))
            self._await_service(control)
        except BaseException:
            self.stop()
            raise
        return self

    def _await_service(self, control: ControlClient) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            has_ended = self._has_ended()
            try:
                control.request("GET", "/v1/health")
            except ControlClientError as error:
                if has_ended:
                    raise BrokerContainerError(f"the broker ended before it served. {self._said()}") from error
                if time.monotonic() > deadline:
                    waited = f"the broker did not serve within {self._start_timeout_s:g} s ({error})"
                    raise BrokerContainerError(f"{waited}. {self._said()}") from error
                time.sleep(_STEP_S)
            else:
                return

    def _has_ended(self) -> bool:
        container = self.get_wrapped_container()
        container.reload()
        return bool(container.status == "exited")

    def _said(self) -> str:
        output, errors = self.get_logs()
        return f"Its log has: {(output + errors).decode(errors='replace').strip() or 'nothing'}"

    def get_bootstrap_server(self) -> str:
        """Return the address for `bootstrap.servers`, as this machine reaches it."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(_KAFKA_PORT)}"

    def get_control_url(self) -> str:
        """Return the URL of control over HTTP, and of the page."""
        return f"http://{self.get_container_host_ip()}:{self.get_exposed_port(_CONTROL_PORT)}"

    @property
    def control(self) -> ControlClient:
        """The records, faults and clock of the broker."""
        return ControlClient(self.get_control_url())


def _archive(listener: str) -> bytes:
    """Return the address, and after it the file that says that the address is complete."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in ((_LISTENER, listener.encode()), (_READY, b"")):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()
