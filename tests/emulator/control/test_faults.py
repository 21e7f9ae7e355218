"""Faults over HTTP: their definitions, their effects on requests, and refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any, get_args

import pytest

from dualwrite.broker_emulator import Fault
from dualwrite.broker_emulator.control.endpoints.faults import ActionShape, NewFault
from dualwrite.broker_emulator.control.shapes import tag_of
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.faults import actions
from tests.emulator.control.client import Client
from tests.emulator.control.conftest import Transaction

ARGUMENTS: dict[str, dict[str, Any]] = {
    "Error": {"code": "COORDINATOR_NOT_AVAILABLE"},
    "PartitionError": {"code": 6},
    "Delay": {"duration_ms": 1},
    "Duplicate": {"after_requests": 2},
}


def test_every_action_and_selector_of_python_is_there() -> None:
    assert {tag_of(shape) for shape in get_args(ActionShape)} == {kind.__name__ for kind in get_args(actions.Action)}
    for shape in get_args(ActionShape):
        kind = getattr(actions, tag_of(shape))
        assert {field.name for field in fields(shape)} - {"type"} == {field.name for field in fields(kind)}
    assert {field.name for field in fields(NewFault)} == {field.name for field in fields(Fault)} - {"predicate"} | {
        "request"
    }


@pytest.mark.parametrize("action", [tag_of(shape) for shape in get_args(ActionShape)])
def test_every_action_can_be_added(client: Client, action: str) -> None:
    asked = {"type": action, **ARGUMENTS.get(action, {})}
    added = client.post("/v1/faults", {"api": "EndTxn", "topic": "orders", "action": asked}, 201)
    assert added["action"]["type"] == action
    assert client.get(f"/v1/faults/{added['fault_id']}") == added
    assert client.get("/v1/faults")["faults"] == [added]


def test_every_selector_is_kept(client: Client) -> None:
    selectors = {
        "api": 26,
        "client_id": "c",
        "transactional_id": "t",
        "group": "g",
        "topic": "orders",
        "partition": 1,
        "node": 0,
        "count": 3,
        "skip": 2,
        "request": {"committed": True},
    }
    added = client.post("/v1/faults", {**selectors, "action": {"type": "Hold"}}, 201)
    assert added["selectors"] == selectors
    everything = client.post("/v1/faults", {"count": None, "action": {"type": "DropReply"}}, 201)
    assert everything["selectors"] == {"count": None, "skip": 0}
    client.delete("/v1/faults")


def test_a_commit_is_held_seen_and_released(client: Client, transaction: Transaction) -> None:
    held = client.post("/v1/faults", {"api": "EndTxn", "action": {"type": "Hold"}}, 201)
    one = f"/v1/faults/{held['fault_id']}"
    with ThreadPoolExecutor(1) as threads:
        commit = threads.submit(transaction.commit)
        assert client.get(f"{one}/wait?held=1")["held"] == 1
        assert not commit.done()
        assert client.get(one)["is_in_place"] is False  # its count is used up, but it holds
        assert client.post(f"{one}/release") == {**held, "hits": 1, "is_in_place": False}
        commit.result(60)


def test_fields_of_the_request_stand_in_for_a_predicate(client: Client, transaction: Transaction) -> None:
    aborts = client.post("/v1/faults", {"api": "EndTxn", "request": {"committed": False}}, 201)
    commits = client.post("/v1/faults", {"api": "EndTxn", "request": {"committed": True}}, 201)
    transaction.commit()
    assert client.get(f"/v1/faults/{commits['fault_id']}/wait?hits=1")["hits"] == 1
    assert client.get(f"/v1/faults/{aborts['fault_id']}")["hits"] == 0


def test_a_pause_points_context_is_selected_by_its_fields(client: Client, transaction: Transaction) -> None:
    other = {"point": "before-marker", "request": {"topic": "audit"}, "action": {"type": "CrashBefore"}}
    this = {"point": "before-marker", "request": {"topic": "orders", "partition": 0}, "action": {"type": "Hold"}}
    missed, held = client.post("/v1/faults", other, 201), client.post("/v1/faults", this, 201)
    transaction.commit()
    client.get(f"/v1/faults/{held['fault_id']}/wait?held=1")
    client.post(f"/v1/faults/{held['fault_id']}/release")
    assert client.get(f"/v1/faults/{missed['fault_id']}")["hits"] == 0


def test_unsent_responses_can_be_read(client: Client, transaction: Transaction) -> None:
    doubled = client.post("/v1/faults", {"api": "EndTxn", "action": {"type": "Duplicate"}}, 201)
    one = f"/v1/faults/{doubled['fault_id']}"
    transaction.commit()
    assert client.get(f"{one}/wait?unsent=1")["unsent"] == 1
    (unsent,) = client.get(f"{one}/unsent")["unsent"]
    assert unsent["throttle_time"] == 0
    assert isinstance(unsent["error_code"], str)


def test_waiting_ends_with_the_timeout(client: Client) -> None:
    added = client.post("/v1/faults", {"api": "EndTxn"}, 201)
    error = client.refused(409, "GET", f"/v1/faults/{added['fault_id']}/wait?hits=2&timeout_ms=1")
    assert error["code"] == "not-reached"
    assert "0 hits" in error["message"]
    client.refused(400, "GET", f"/v1/faults/{added['fault_id']}/wait")


def test_faults_of_the_tests_own_process_are_shown(client: Client, controlled: Emulator) -> None:
    handle = controlled.faults.add(Fault(api="EndTxn", predicate=lambda request: True))
    (shown,) = client.get("/v1/faults")["faults"]
    assert shown["selectors"]["predicate"] == "a Python function"
    handle.remove()
    assert client.get("/v1/faults")["faults"] == []


def test_used_up_faults_are_not_kept_for_ever(
    client: Client, monkeypatch: pytest.MonkeyPatch, transaction: Transaction
) -> None:
    monkeypatch.setattr("dualwrite.broker_emulator.control.endpoint.MAX_USED_UP", 1)
    used_up = client.post("/v1/faults", {"api": "EndTxn", "action": {"type": "Delay", "duration_ms": 0}}, 201)
    transaction.commit()
    assert client.get(f"/v1/faults/{used_up['fault_id']}")["is_in_place"] is False
    client.post("/v1/faults", {"api": "EndTxn"}, 201)
    client.refused(404, "GET", f"/v1/faults/{used_up['fault_id']}")


@pytest.mark.parametrize(
    ("body", "said", "known"),
    [
        ({"acton": {"type": "Hold"}}, "'acton' is not known; did you mean 'action'?", "action"),
        ({"predicate": "x"}, "'predicate' is not known", "request"),
        ({"action": {"type": "Hodl"}}, "did you mean 'Hold'?", "Hold"),
        ({"action": "Hold"}, "'action' must be an object with a 'type', not \"Hold\"", "Hold"),
        ({"action": {"type": "Hold", "code": 1}}, "'action.code' is not known", "type"),
        ({"action": {"type": "Error"}}, "'action.code' is missing", "code"),
        ({"action": {"type": "Error", "code": "NOT_A_CODE"}}, "no error code 'NOT_A_CODE'", None),
        ({"action": {"type": "Error", "code": 1.5}}, "'action.code' must be of type integer or string, not 1.5", None),
        ({"action": {"type": "Delay", "duration_ms": -1}}, "'action.duration_ms' must be at least 0", None),
        ({"action": {"type": "PartitionError", "code": 6}}, "PartitionError needs a topic", None),
        ({"api": "EndTransaction"}, "no API called 'EndTransaction'", None),
        ({"api": True}, "'api' must be of type string or integer, not true", None),
        ({"api": "EndTxn", "request": {"commited": True}}, "did you mean 'committed'?", None),
        ({"api": "EndTxn", "request": {"committed": [1]}}, "must be a string, a number", None),
        ({"request": {"committed": True}}, "'request' needs an 'api'", None),
        ({"point": "before-mark"}, "did you mean 'before-marker'?", "before-marker"),
        ({"point": "before-marker", "api": "EndTxn"}, "has no api to select by", None),
        ({"point": "before-marker", "request": {"tpoic": "x"}}, "did you mean 'topic'?", None),
        ({"count": 0}, "count must be a number of at least 1", None),
        ({"count": "1"}, "'count' must be of type integer", None),
        ({"skip": None}, "'skip' must be of type integer, not null", None),
        ({"partition": -1}, "'partition' must be at least 0", None),
        ([], "the body must be an object", None),
    ],
)
def test_meaningless_faults_are_refused(client: Client, body: object, said: str, known: str | None) -> None:
    error = client.refused(400, "POST", "/v1/faults", body)
    assert said in error["message"]
    if known is not None:
        assert known in error["known"]
    assert client.get("/v1/faults")["faults"] == []
