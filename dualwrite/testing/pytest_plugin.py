"""The pytest plugin: a Kafka broker for each test, with faults, a clock and crashes.

Installing `dualwrite[pytest]` activates it. It imports nothing until a test requests one of its fixtures.

    def test_the_service_survives_a_lost_response(kafka_emulator, kafka_faults):
        lost = kafka_faults.add(Fault(api="EndTxn", action=DropReply()))
        my_service.run_once(kafka_emulator.bootstrap_servers)
        lost.wait(1)
        assert [record.value for record in kafka_emulator.records("orders")] == [b"1"]
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from dualwrite.broker_emulator import Faults
    from dualwrite.broker_emulator.clock import VirtualClock
    from dualwrite.broker_emulator.emulator import Emulator
    from dualwrite.testing.crashes import Crashes
    from dualwrite.testing.emulator_clock import EmulatorClock

MARKER: Final = "kafka_emulator"
_SHOW_INTERNALS: Final = "dualwrite_show_internals"
_PROFILE: Final = "dualwrite_profile"
_OF_SESSION: Final = "kafka_emulator_session"

_MARKER_LINE: Final = (
    "kafka_emulator(nodes=, topics=, config=, data_dir=, ...): the arguments of Emulator(...) for this test's brokers; "
    "config may be a dict with Kafka's names, data_dir=True creates a directory for the test"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER_LINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_SHOW_INTERNALS, "show dualwrite's own frames in tracebacks too", type="bool", default=False)
    parser.addini(_PROFILE, "the Kafka that the test's brokers imitate, unless their config says")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.excinfo is None or item.config.getini(_SHOW_INTERNALS) or item.config.getoption("fulltrace"):
        return
    from dualwrite.testing.tracebacks import hide_internals

    hide_internals(call.excinfo)


@pytest.fixture
def kafka_emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """Start a broker for this test alone, in this process; `kafka_emulator.bootstrap_servers` is its address.

    Topics are created at their first use, or by `@pytest.mark.kafka_emulator(topics={"orders": 3})`. If the test also
    requests `kafka_clock`, the broker runs on a clock that only the test advances.
    """
    with _new_emulator(request, nodes=1) as emulator:
        yield emulator


@pytest.fixture
def kafka_emulator_cluster(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """Start three brokers for this test alone, or as many as `@pytest.mark.kafka_emulator(nodes=5)` says."""
    with _new_emulator(request, nodes=3) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def kafka_session_settings() -> dict[str, Any]:
    """Override this to configure the session's broker: the arguments of Emulator(...), as the marker takes them."""
    return {}


@pytest.fixture(scope="session")
def kafka_session_broker(
    request: pytest.FixtureRequest, kafka_session_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulator]:
    """Start one broker for all tests of this process, for services that a session starts once.

    With pytest-xdist each worker has one. Tests themselves request `kafka_emulator_session`.
    """
    settings = _with_broker_config(request, {"nodes": 1, **kafka_session_settings}, "kafka_session_settings")
    if settings.get("data_dir") is True:
        settings["data_dir"] = tmp_path_factory.mktemp("kafka") / "session"
    with _make(settings, "kafka_session_settings") as emulator:
        yield emulator


@pytest.fixture
def kafka_emulator_session(request: pytest.FixtureRequest, kafka_session_broker: Emulator) -> Iterator[Emulator]:
    """Give the session's broker, reset before and after the test: no records, faults, holds or idle groups of others.

    Topics, connections and groups with members stay. A transaction that the test leaves open is aborted.
    """
    if next(request.node.iter_markers(MARKER), None) is not None:
        raise pytest.UsageError(
            f"@pytest.mark.{MARKER} of {request.node.nodeid}: the broker of the session is configured once, by the "
            "fixture kafka_session_settings; use kafka_emulator for a broker of this test's own"
        )
    kafka_session_broker.reset()
    yield kafka_session_broker
    kafka_session_broker.reset()


@pytest.fixture
def kafka_name() -> Callable[[str], str]:
    """Make names that no other test has, of topics, groups and transactional ids: `kafka_name("orders")`.

    Isolates tests that share a broker which cannot be reset between them, because they run at the same time.
    """
    suffix = uuid.uuid4().hex[:12]
    return lambda name: f"{name}-{suffix}"


@pytest.fixture(scope="session")
def kafka_forget_rows() -> Callable[[Any], None]:
    """Empty the tables of dual writes in a database that outlives the test's broker: `kafka_forget_rows(engine)`."""
    from dualwrite.testing.forgotten_rows import forget_rows

    return forget_rows


@pytest.fixture
def kafka_faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """Give the faults of the test's brokers. Requests that they still hold at the end of the test are released."""
    faults = _brokers(request).faults
    yield faults
    faults.clear()


@pytest.fixture
def kafka_clock(request: pytest.FixtureRequest) -> EmulatorClock:
    """Give the clock of the test's brokers, which stands still until `kafka_clock.advance(...)`."""
    from dualwrite.testing.emulator_clock import EmulatorClock

    return EmulatorClock(_brokers(request))


@pytest.fixture
def kafka_schema_registry(request: pytest.FixtureRequest) -> str:
    """Give the URL of a schema registry beside the test's brokers, as Confluent's serializers take it."""
    return _brokers(request).schema_registry_url


@pytest.fixture
def kafka_crashes(request: pytest.FixtureRequest) -> Crashes:
    """Crash the test's brokers, or processes that use them, at points that the test names."""
    from dualwrite.testing.crashes import Crashes

    return Crashes(_brokers(request))


def _brokers(request: pytest.FixtureRequest) -> Emulator:
    """Return the brokers of the test's fixture; without one, start a single broker."""
    names = ("kafka_emulator_cluster", _OF_SESSION)
    name = next((name for name in names if name in request.fixturenames), "kafka_emulator")
    brokers: Emulator = request.getfixturevalue(name)
    return brokers


def _new_emulator(request: pytest.FixtureRequest, *, nodes: int) -> Emulator:
    where = f"@pytest.mark.{MARKER} of {request.node.nodeid}"
    settings = _with_broker_config(request, {"nodes": nodes, **_marker_settings(request)}, where)
    if settings.get("data_dir") is True:
        settings["data_dir"] = request.getfixturevalue("tmp_path") / "kafka"
    if "kafka_clock" in request.fixturenames:
        settings.setdefault("clock", _standing_clock())
    if "kafka_schema_registry" in request.fixturenames:
        settings.setdefault("schema_registry", "127.0.0.1:0")
    return _make(settings, where)


def _make(settings: dict[str, Any], where: str) -> Emulator:
    from dualwrite.broker_emulator.emulator import Emulator
    from dualwrite.broker_emulator.text import did_you_mean

    known = inspect.signature(Emulator).parameters
    for name in settings.keys() - known.keys():
        hint = did_you_mean(name, known) or f"; the settings are {', '.join(known)}"
        raise pytest.UsageError(f"{where}: unknown setting {name!r}{hint}")
    try:
        return Emulator(**settings)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{where}: {error}") from error


def _standing_clock() -> VirtualClock:
    """Return a clock that starts at the real time, because clients take record timestamps from the real clock."""
    from dualwrite.broker_emulator.clock import SystemClock, VirtualClock

    return VirtualClock(SystemClock().now_ms())


def _marker_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of the test's markers; the closest marker wins."""
    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            raise pytest.UsageError(f"@pytest.mark.{MARKER} of {request.node.nodeid} takes keyword arguments only")
        settings |= marker.kwargs
    return settings


def _with_broker_config(request: pytest.FixtureRequest, settings: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the settings with a BrokerConfig, of the session's profile where they name none."""
    try:
        from dualwrite.broker_emulator.config import BrokerConfig
        from dualwrite.broker_emulator.profiles import NEWEST_RELEASE
    except ImportError as error:
        raise pytest.UsageError(
            f"the broker emulator lacks a package ({error}): install dualwrite[pytest], which includes it"
        ) from error
    config = settings.get("config", {})
    if not isinstance(config, dict):
        return settings
    profile = request.config.getini(_PROFILE) or str(NEWEST_RELEASE)
    try:
        return {**settings, "config": BrokerConfig.from_properties({"profile": profile, **config})}
    except ValueError as error:
        raise pytest.UsageError(f"{where}: {error}") from error
