"""The comparison itself, with two emulators: equal ones have no difference, and unequal ones have theirs found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.differential.comparison import Comparison
from tests.differential.decoding import decode_response
from tests.differential.logs import INTERNAL_PARTITIONS, ends_of, logs_of
from tests.differential.side import Side
from tests.differential.steps import Step
from tests.emulator.api.raw_client import RawClient, decode, encode

SEED = "7"


@contextmanager
def side(**settings: Any) -> Iterator[Side]:
    config = BrokerConfig(
        profile=Profile.KAFKA_4_3,
        transaction_state_log_num_partitions=INTERNAL_PARTITIONS,
        offsets_topic_num_partitions=INTERNAL_PARTITIONS,
        **settings,
    )
    with Emulator(config=config) as emulator:
        one = Side("emulator", emulator.bootstrap_servers)
        yield one
        one.close()


def test_differences_are_found_and_shrunk() -> None:
    with side() as one, side(transaction_max_timeout_ms=1_000) as other:
        comparison = Comparison(one, other)
        found = (comparison.compare(f"{SEED}:{number}") for number in range(50))
        difference = comparison.shrink(next(each for each in found if each is not None and len(each.steps) > 1))
    assert difference.about == "init_producer_id.error_code 0 / 50"
    (step,) = difference.steps
    assert step.values["timeout_ms"] == 60_000
    assert "init_producer_id v" in str(difference)


def test_logs_are_compared_without_values_chosen_by_the_broker() -> None:
    steps = [
        Step("init_producer_id", 5, {"id": "A", "timeout_ms": 60_000, "expects": "nothing", "epoch": 0}),
        Step("add_offsets_to_txn", 3, {"id": "A", "producer": "A", "epoch": 0, "group": "g"}),
        Step("end_txn", 4, {"id": "A", "producer": "A", "epoch": 0, "commit": True}),
    ]
    with side() as one:
        (name,) = topics = one.create_topics(["sequence"])
        one.begin(name, topics[name])
        starts = ends_of(one)
        assert [one.play(step)["error_code"] for step in steps] == [0, 0, 0]
        logs = logs_of(one, starts)
    partition = {"__consumer_offsets": [partition_for("sequence-g", INTERNAL_PARTITIONS)]}
    states = [(0, {}), (1, partition), (2, partition), (4, {})]
    found = [(state, partitions) for _, _, _, state, partitions, _ in logs["transactions of A"]]
    assert found == states
    assert logs["t-0"] == logs["offsets of g"] == []


@pytest.mark.parametrize(
    ("api", "version", "values"),
    [
        ("api_versions", 4, {"client_software_name": "a", "client_software_version": "1"}),
        ("metadata", 12, {"topics": None, "include_topic_authorized_operations": False}),
        ("metadata", 1, {"topics": None}),
        ("list_groups", 5, {"states_filter": (), "types_filter": ()}),
    ],
)
def test_answers_are_read_as_by_the_codec(api: str, version: int, values: dict[str, Any]) -> None:
    with Emulator(topics={"t": 2}) as emulator, RawClient(emulator.bootstrap_servers) as client:
        client.send_bytes(encode(api, version, 1, "x", allow_auto_topic_creation=False, **values))
        frame = client.receive_frame()
    _, expected = decode(api, version, frame)
    read = decode_response(api, version, frame)
    assert set(vars(read)) == {member.name for member in fields(expected)}
    arrays = [name for name in vars(read) if isinstance(getattr(expected, name), tuple)]
    assert arrays
    assert [len(getattr(read, name)) for name in arrays] == [len(getattr(expected, name)) for name in arrays]
    assert read.error_code == 0 if "error_code" in vars(read) else True
