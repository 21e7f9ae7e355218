"""The pytest plugin, as a project that has installed it uses it."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

_SEND = """
from confluent_kafka import Producer

def send(broker, topic, *values):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
"""


def run(pytester: pytest.Pytester, tests: str) -> pytest.RunResult:
    pytester.makepyfile(sending=_SEND, test_it=f"import pytest\nfrom sending import send\n{tests}")
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "--strict-markers")


def test_a_schema_registry_beside_the_broker_only_if_it_is_asked_for(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

def test_registry(kafka_emulator, kafka_schema_registry):
    client = SchemaRegistryClient({"url": kafka_schema_registry})
    assert client.register_schema("a", Schema('"int"', "AVRO")) == 1
    assert len(kafka_emulator.records("_schemas")) == 1

def test_none(kafka_emulator):
    assert kafka_emulator.schema_registry_url == ""
""",
    )
    result.assert_outcomes(passed=2)


def test_each_test_has_a_broker_of_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
addresses = set()

@pytest.mark.parametrize("number", [1, 2])
def test_send(kafka_emulator, number):
    addresses.add(kafka_emulator.bootstrap_servers)
    send(kafka_emulator, "t", str(number))
    assert [record.value for record in kafka_emulator.records("t")] == [str(number).encode()]

def test_they_were_two():
    assert len(addresses) == 2
""",
    )
    result.assert_outcomes(passed=3)


def test_markers_say_how_brokers_are_made_and_the_nearest_wins(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
pytestmark = pytest.mark.kafka_emulator(topics={"a": 2}, config={"num.partitions": "5"}, nodes=2)

def test_of_the_module(kafka_emulator, kafka_emulator_cluster):
    assert len(kafka_emulator.living_nodes) == len(kafka_emulator_cluster.living_nodes) == 2
    assert kafka_emulator.config.num_partitions == 5
    assert kafka_emulator.records("a", 1) == []

@pytest.mark.kafka_emulator(nodes=1, data_dir=True)
def test_of_the_test(kafka_emulator, tmp_path):
    assert len(kafka_emulator.living_nodes) == 1
    assert (tmp_path / "kafka" / "metadata.journal").exists()
    assert kafka_emulator.records("a", 1) == []
""",
    )
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(("setting", "expected"), [("", "kafka-4.4"), ("dualwrite_profile = kafka-3.9", "kafka-3.9")])
def test_brokers_imitate_the_profile_of_the_session(pytester: pytest.Pytester, setting: str, expected: str) -> None:
    pytester.makeini(f"[pytest]\n{setting}\n")
    pytester.makepyfile(
        f"""
import pytest

def test_of_the_session(kafka_emulator, kafka_session_broker):
    assert kafka_emulator.config.profile == kafka_session_broker.config.profile == "{expected}"

@pytest.mark.kafka_emulator(config={{"profile": "kip-939"}})
def test_of_its_own(kafka_emulator):
    assert kafka_emulator.config.profile == "kip-939"
"""
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)


def test_a_cluster_has_three_nodes(pytester: pytest.Pytester) -> None:
    tests = "def test_nodes(kafka_emulator_cluster):\n    assert kafka_emulator_cluster.living_nodes == [0, 1, 2]"
    run(pytester, tests).assert_outcomes(passed=1)


def test_time_stands_still_if_a_test_requests_the_clock(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
from datetime import timedelta

def test_clock(kafka_clock, kafka_emulator):
    before = kafka_clock.now_ms()
    kafka_clock.advance(timedelta(minutes=1), ms=5)
    assert kafka_emulator.clock.now_ms() == kafka_clock.now_ms() == before + 60_005
    with pytest.raises(ValueError, match="at least a millisecond"):
        kafka_clock.advance()
    with pytest.raises(ValueError, match="at least a millisecond"):
        kafka_clock.advance(ms=-1)
""",
    )
    result.assert_outcomes(passed=1)


def test_faults_end_with_their_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import threading
from dualwrite.broker_emulator import Fault, Hold

def test_held(kafka_emulator_cluster, kafka_faults):
    held = kafka_faults.add(Fault(api="Produce", action=Hold()))
    sending = threading.Thread(target=send, args=(kafka_emulator_cluster, "t", "1"))
    sending.start()
    held.wait_held()
    held.release()
    sending.join()

def test_none_is_left(kafka_emulator, kafka_faults):
    assert kafka_emulator.faults is kafka_faults
    send(kafka_emulator, "t", "1")
""",
    )
    result.assert_outcomes(passed=2)


def test_a_killed_broker_keeps_acknowledged_records(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_restart(kafka_emulator_cluster, kafka_crashes):
    before = kafka_emulator_cluster.bootstrap_servers
    send(kafka_emulator_cluster, "t", "1")
    kafka_crashes.restart_broker()
    send(kafka_emulator_cluster, "t", "2")
    assert kafka_emulator_cluster.bootstrap_servers == before
    assert sorted(record.value for record in kafka_emulator_cluster.records("t")) == [b"1", b"2"]
""",
    )
    result.assert_outcomes(passed=1)


_CLIENT = """
import os, sys
from confluent_kafka import Producer
print("started", flush=True)
producer = Producer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"], "linger.ms": 0})
producer.produce(os.environ["TOPIC"], "1")
producer.flush(30)
producer.produce(os.environ["TOPIC"], "2")
producer.flush(30)
print("ended", flush=True)
"""


def test_a_client_is_killed_at_its_request_and_no_later(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(client=_CLIENT)
    result = run(
        pytester,
        """
import sys
from dualwrite.testing.crashes import ClientNotKilledError

@pytest.mark.parametrize(("skip", "applied", "left"), [(0, False, []), (0, True, [b"1"]), (1, True, [b"1", b"2"])])
def test_kill(kafka_emulator, kafka_crashes, skip, applied, left):
    killed = kafka_crashes.kill_client(
        [sys.executable, "client.py"], at="Produce", applied=applied, skip=skip, env={"TOPIC": "t"}
    )
    assert killed.stdout == "started\\n"
    assert [record.value for record in kafka_emulator.records("t")] == left
    send(kafka_emulator, "t", "later")  # nothing of the fault is left

def test_ended_before(kafka_crashes):
    with pytest.raises(ClientNotKilledError, match="request 1 of EndTxn.*exit status 0.*ended"):
        kafka_crashes.kill_client([sys.executable, "client.py"], at="EndTxn", applied=True, env={"TOPIC": "t"})

def test_never(kafka_crashes):
    with pytest.raises(ClientNotKilledError, match="did not come within 0.1 s"):
        kafka_crashes.kill_client(
            [sys.executable, "-c", "import signal; signal.pause()"], at="EndTxn", applied=True, timeout_s=0.1
        )

def test_standard_input_is_empty(kafka_crashes):
    with pytest.raises(ClientNotKilledError, match="exit status 0, output 'nothing"):
        kafka_crashes.kill_client(
            [sys.executable, "-c", "import sys; print(sys.stdin.read() or 'nothing')"], at="EndTxn", applied=True
        )

def test_not_an_api(kafka_crashes):
    with pytest.raises(ValueError, match="EndTx"):
        kafka_crashes.kill_client([sys.executable, "client.py"], at="EndTx", applied=True)
""",
    )
    result.assert_outcomes(passed=7)


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        ("topic={}", "unknown setting 'topic'; did you mean 'topics'?"),
        ("nodes=0", "a cluster needs at least one node, not 0"),
        ("config={'num.partitions': '0'}", "configuration num.partitions: Value must be at least 1"),
        ("3", "takes keyword arguments only"),
    ],
)
def test_a_marker_that_makes_no_broker_is_an_error_that_says_why(
    pytester: pytest.Pytester, marker: str, sentence: str
) -> None:
    tests = f"@pytest.mark.kafka_emulator({marker})\ndef test_it(kafka_emulator):\n    pass\n"
    result = run(pytester, tests)
    result.assert_outcomes(errors=1)
    assert sentence in result.stdout.str()
    assert "test_it.py::test_it" in result.stdout.str()


def test_the_plugin_loads_only_what_a_test_requests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\ndef test_it():\n    assert 'dualwrite.broker_emulator.emulator' not in sys.modules\n"
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_a_database_outlives_a_broker_although_no_writer_is_closed(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import sqlalchemy as sa
from dualwrite import DualWriter

ENGINE = sa.create_engine("sqlite:///shop.db")
writers = []

@pytest.mark.parametrize("database", [ENGINE, "sqlite:///shop.db"])
def test_write(kafka_emulator, kafka_forget_rows, database):
    kafka_forget_rows(database)
    writers.append(DualWriter(ENGINE, transactional_id="shop", bootstrap_servers=kafka_emulator.bootstrap_servers))
    with writers[-1].transaction() as tx:
        tx.send("orders", "lamp")
    assert [record.value for record in kafka_emulator.records("orders")] == [b"lamp"]
""",
    )
    result.assert_outcomes(passed=2)
