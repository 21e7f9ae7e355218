"""One broker for a session of tests, and the report of a failed test."""

from __future__ import annotations

import pytest

from tests.pytest_plugin.test_fixtures import run

pytest_plugins = ("pytester",)


def test_tests_of_a_session_share_a_broker_and_do_not_see_each_others_records(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
import pytest

@pytest.fixture(scope="session")
def kafka_session_settings():
    return {"topics": {"t": 2}, "config": {"num.partitions": "5"}, "data_dir": True, "nodes": 2}

@pytest.fixture(scope="session")
def service(kafka_session_broker):
    from confluent_kafka import Producer
    producer = Producer({"bootstrap.servers": kafka_session_broker.bootstrap_servers, "transactional.id": "service"})
    producer.init_transactions(30)
    return producer
"""
    )
    result = run(
        pytester,
        """
from dualwrite.broker_emulator import Fault, Hold

seen = set()

@pytest.mark.parametrize("number", [1, 2, 3])
def test_send(kafka_emulator_session, kafka_faults, service, number):
    seen.add(kafka_emulator_session.bootstrap_servers)
    assert kafka_faults.live == []
    assert kafka_emulator_session.config.num_partitions == 5
    assert kafka_emulator_session.records("t") == []
    service.begin_transaction()
    service.produce("t", str(number), partition=1)
    service.commit_transaction(30)
    assert [record.value for record in kafka_emulator_session.records("t")] == [str(number).encode()]
    kafka_faults.add(Fault(api="Heartbeat", action=Hold(), count=None))
    kafka_emulator_session.crash_node(1)

def test_they_were_one_which_is_empty_now(kafka_session_broker):
    assert seen == {kafka_session_broker.bootstrap_servers}
    assert kafka_session_broker.records("t", read_committed=False) == []
    assert kafka_session_broker.living_nodes == [0, 1]

def test_names(kafka_name):
    assert kafka_name("a") == kafka_name("a") != kafka_name("b")
    seen.add(kafka_name("a"))

def test_other_names(kafka_name):
    assert kafka_name("a") not in seen

@pytest.mark.kafka_emulator(nodes=3)
def test_marked(kafka_emulator_session):
    pass
""",
    )
    result.assert_outcomes(passed=6, errors=1)
    assert "the broker of the session is configured once, by the fixture kafka_session_settings" in result.stdout.str()


def test_a_mistake_in_the_settings_of_the_session_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import pytest\n@pytest.fixture(scope='session')\ndef kafka_session_settings():\n    return {'topic': {}}\n"
    )
    result = run(pytester, "def test_it(kafka_emulator_session):\n    pass\n")
    result.assert_outcomes(errors=1)
    assert "kafka_session_settings: unknown setting 'topic'; did you mean 'topics'?" in result.stdout.str()


_FAILING = """
from dualwrite.broker_emulator import Fault
from dualwrite.producer import Producer

def test_direct(kafka_emulator):
    kafka_emulator.create_topic("t")
    kafka_emulator.records("t", 7)  # the user's line

def test_in_the_loop_of_the_emulator(kafka_emulator):
    kafka_emulator.create_topic("..")  # the user's line

def test_with_a_cause(kafka_emulator):
    try:
        kafka_emulator.create_topic("..")
    except ValueError as error:
        raise RuntimeError("of the user") from error  # the user's line

def test_called_back(kafka_emulator):
    def mine():
        raise RuntimeError("called back")  # the user's line
    kafka_emulator.call_in_loop(mine)

def test_of_the_client(kafka_emulator):
    producer = Producer(bootstrap_servers=kafka_emulator.bootstrap_servers)
    producer.send("t", value=7)  # the user's line
"""


def test_a_failure_shows_the_users_lines_and_no_internals(pytester: pytest.Pytester) -> None:
    result = run(pytester, _FAILING)
    result.assert_outcomes(failed=5)
    shown = result.stdout.str()
    assert shown.count("# the user's line") >= 5
    assert "broker_emulator/emulator.py" not in shown
    assert "concurrent/futures" not in shown
    assert "dualwrite/producer.py" not in shown
    assert "t has no partition 7" in shown
    assert "RuntimeError: called back" in shown


@pytest.mark.parametrize("how", ["--full-trace", "-o", "ini"])
def test_internals_are_shown_on_demand(pytester: pytest.Pytester, how: str) -> None:
    pytester.makepyfile(test_it=f"import pytest\n{_FAILING}")
    options = ["--full-trace"] if how == "--full-trace" else ["-o", "dualwrite_show_internals=true"]
    if how == "ini":
        pytester.makeini("[pytest]\ndualwrite_show_internals = true\n")
        options = []
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *options, "-k", "direct")
    result.assert_outcomes(failed=1, deselected=4)
    assert "broker_emulator/emulator.py" in result.stdout.str()
