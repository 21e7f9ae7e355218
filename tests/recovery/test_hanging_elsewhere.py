"""Which topics are searched for transactions that hang, and what is said of those that are not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dualwrite.admin import HangingTransaction, TopicPartition
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.errors import AuthorizationError, IncompleteAnswerError, KafkaTimeoutError
from dualwrite.hanging import next_step
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.recovery import hanging_elsewhere
from dualwrite.recipes.recovery.hanging_elsewhere import find_hanging, is_decided
from dualwrite.recipes.recovery.seen import Cluster
from dualwrite.recipes.recovery.stored_rows import StoredRow


class Admin:
    """Answers for some topics with an error."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        self.errors = errors
        self.searched: list[str] = []

    def find_hanging(self, topic: str, **_: int) -> tuple[()]:
        self.searched.append(topic)
        if topic in self.errors:
            raise self.errors[topic]
        return ()


def search(admin: Admin, *topics: str, stopped: threading.Event | None = None, text: str = "") -> list[str]:
    """Return why topics were not searched."""
    unseen: list[str] = []
    of_ours: Any = admin
    found, searched = find_hanging(
        of_ours, {"id": StoredRow("7:3", text)}, topics, unseen, min_age_ms=0, stopped=stopped
    )
    assert found == []
    assert searched == [topic for topic in admin.searched if topic not in admin.errors]
    return unseen


def test_a_partition_without_a_leader_hides_no_other_topic() -> None:
    away = KafkaTimeoutError("a-0 has no leader")
    admin = Admin({"a": IncompleteAnswerError("not all", partial=(), failures={("a", 0): away})})
    assert search(admin, "a", "b") == ["topic 'a' was not searched for transactions that hang: a-0 has no leader"]
    assert admin.searched == ["a", "b"]


def test_a_topic_that_only_settled_rows_name_comes_last_and_may_be_without_a_leader() -> None:
    away: dict[str, Exception] = {"a": KafkaTimeoutError("a-0 has no leader")}
    admin = Admin(away)
    settled = "committed 7:3 here a b"
    assert search(admin, "c", text=settled) == []
    assert admin.searched == ["c", "a", "b"]
    assert len(search(Admin(away), "a", text=settled)) == 1


def test_no_time_is_left_for_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging_elsewhere, "MOST_MS", 0)
    admin = Admin({})
    assert search(admin, "a", text="committed 7:3 here b") == [
        "topic 'a' was not searched for transactions that hang: 0 ms have passed"
    ]
    assert admin.searched == []


def test_a_missing_right_is_reported_only_for_requested_topics() -> None:
    denied = AuthorizationError("no READ")
    assert search(Admin({"a": denied}), "a") == ["topic 'a' was not searched for transactions that hang: no READ"]


def test_no_search_begins_after_the_stop() -> None:
    admin, stopped = Admin({}), threading.Event()
    stopped.set()
    assert search(admin, "a", "b", stopped=stopped) == []
    assert admin.searched == []


HANGING = HangingTransaction(TopicPartition("orders", 1), 7, 3, 0, 93, 0, "id")
ELSEWHERE = str(Manifest(PreparedTxnState("7:2"), "another", (), has_offsets=False))
COMMIT = "`dualwrite transactions commit --topic orders --partition 1 --prepared-state 7:3`"
ABORT = "`dualwrite transactions abort --topic orders --partition 1 --start-offset 93`"


@pytest.mark.parametrize(
    ("state", "manifest", "version", "decided"),
    [
        ("7:3", "", 2, True),
        ("7:3", "", 1, None),
        ("7:2", "", 2, None),
        ("7:2", "committed 7:2 here orders", 1, False),
        ("7:2", "committed 7:2 another orders", 2, None),
        ("7:2", "committed 7:2 ?", 2, None),
        ("7:2", ELSEWHERE, 2, None),
        ("", "", 2, False),
        ("7:4", "", 2, None),
        ("8:2", "", 2, None),
        ("damaged", "", 2, None),
        (None, "", 2, None),
    ],
)
def test_whether_the_row_says_that_a_transaction_is_decided(
    state: str | None, manifest: str, version: int, decided: bool | None
) -> None:
    assert is_decided(HANGING, StoredRow(state, manifest), Cluster("here", version, lambda _: True)) is decided


def test_the_next_step_follows_the_row() -> None:
    decided, undecided, unknown = (next_step(HANGING, is_decided=each) for each in (True, False, None))
    assert f"commit it: {COMMIT}; only if" in decided
    assert (
        f"this database had not decided it when the row was read: if a second look says the same, abort it: {ABORT}"
        in (undecided)
    )
    assert f"says: {COMMIT}; else: {ABORT}" in unknown
