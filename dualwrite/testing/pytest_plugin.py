"""The pytest plugin: a Kafka broker for each test, with its faults, its clock and crashes.

It is there as soon as `dualwrite[pytest]` is installed, and loads nothing before a test asks for one of its fixtures.

    def test_the_service_survives_a_lost_answer(kafka_emulator, kafka_faults):
        lost = kafka_faults.add(Fault(api="EndTxn", action=DropReply()))
        my_service.run_once(kafka_emulator.bootstrap_servers)
        lost.wait(1)
        assert [record.value for record in kafka_emulator.records("orders")] == [b"1"]
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from dualwrite.broker_emulator.emulator import Emulator
    from dualwrite.broker_emulator.faults import Faults
    from dualwrite.testing.crashes import Crashes
    from dualwrite.testing.emulator_clock import EmulatorClock

MARKER: Final = "kafka_emulator"

_MARKER_LINE: Final = (
    "kafka_emulator(nodes=, topics=, config=, data_dir=, ...): how the brokers of this test are made, as "
    "Emulator(...) takes it; config may be a dict of Kafka's names, data_dir=True is a directory of the test's own"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER_LINE)


@pytest.fixture
def kafka_emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A broker of this test's own, in this process: `kafka_emulator.bootstrap_servers` is where it listens.

    Topics are created when they are first used, or by `@pytest.mark.kafka_emulator(topics={"orders": 3})`. It runs on a
    clock that stands still where the test asks for `kafka_clock`.
    """
    with _made(request, nodes=1) as emulator:
        yield emulator


@pytest.fixture
def kafka_emulator_cluster(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """Three brokers of this test's own, or as many as `@pytest.mark.kafka_emulator(nodes=5)` says."""
    with _made(request, nodes=3) as emulator:
        yield emulator


@pytest.fixture
def kafka_faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """The faults of the test's brokers. What they still hold at its end is let go."""
    faults = _brokers(request).faults
    yield faults
    faults.clear()


@pytest.fixture
def kafka_clock(request: pytest.FixtureRequest) -> EmulatorClock:
    """The time of the test's brokers, which stands still until `kafka_clock.advance(...)`."""
    from dualwrite.testing.emulator_clock import EmulatorClock

    return EmulatorClock(_brokers(request))


@pytest.fixture
def kafka_crashes(request: pytest.FixtureRequest) -> Crashes:
    """Crashes of the test's brokers, and of processes that use them, at named instants."""
    from dualwrite.testing.crashes import Crashes

    return Crashes(_brokers(request))


def _brokers(request: pytest.FixtureRequest) -> Emulator:
    """Those that the test has, or one."""
    name = "kafka_emulator_cluster" if "kafka_emulator_cluster" in request.fixturenames else "kafka_emulator"
    brokers: Emulator = request.getfixturevalue(name)
    return brokers


def _made(request: pytest.FixtureRequest, *, nodes: int) -> Emulator:
    try:
        from dualwrite.broker_emulator.clock import SystemClock, VirtualClock
        from dualwrite.broker_emulator.emulator import Emulator
        from dualwrite.broker_emulator.suggestions import did_you_mean
    except ImportError as error:
        raise pytest.UsageError(
            f"the broker emulator lacks a package ({error}): install dualwrite[pytest], which names all it needs"
        ) from error
    settings: dict[str, Any] = {"nodes": nodes, **_marked(request)}
    if "kafka_clock" in request.fixturenames:
        # from now on: clients stamp their records by the real clock, and producer ids follow the broker's
        settings.setdefault("clock", VirtualClock(SystemClock().now_ms()))
    where = f"@pytest.mark.{MARKER} of {request.node.nodeid}"
    known = inspect.signature(Emulator).parameters
    for name in settings.keys() - known.keys():
        hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        raise pytest.UsageError(f"{where}: {name!r} is not known{hint}")
    try:
        return Emulator(**settings)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{where}: {error}") from error


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the markers say; the nearest one wins."""
    from dualwrite.broker_emulator.config import BrokerConfig

    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            raise pytest.UsageError(f"@pytest.mark.{MARKER} of {request.node.nodeid} takes its settings by name")
        settings |= marker.kwargs
    try:
        if isinstance(settings.get("config"), dict):
            settings["config"] = BrokerConfig.from_properties(settings["config"])
    except ValueError as error:
        raise pytest.UsageError(f"@pytest.mark.{MARKER} of {request.node.nodeid}: {error}") from error
    if settings.get("data_dir") is True:
        settings["data_dir"] = request.getfixturevalue("tmp_path") / "kafka"
    return settings
