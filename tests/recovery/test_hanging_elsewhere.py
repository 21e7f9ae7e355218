"""Which topics are searched for transactions that hang, and what is said of those that are not."""

from __future__ import annotations

import threading
from typing import Any

from dualwrite.errors import AuthorizationError, IncompleteAnswerError, KafkaTimeoutError
from dualwrite.recipes.recovery.hanging_elsewhere import find_hanging
from dualwrite.recipes.recovery.stored_rows import StoredRow


class Admin:
    """Answers for some topics with an error."""

    def __init__(self, errors: dict[str, Exception]) -> None:
        self._errors = errors
        self.searched: list[str] = []

    def find_hanging(self, topic: str, **_: int) -> tuple[()]:
        self.searched.append(topic)
        if topic in self._errors:
            raise self._errors[topic]
        return ()


def search(admin: Admin, *topics: str, stopped: threading.Event | None = None) -> list[str]:
    unseen: list[str] = []
    of_ours: Any = admin
    assert find_hanging(of_ours, {"id": StoredRow("", "")}, topics, unseen, min_age_ms=0, stopped=stopped) == []
    return unseen


def test_a_partition_without_a_leader_hides_no_other_topic() -> None:
    away = KafkaTimeoutError("a-0 has no leader")
    admin = Admin({"a": IncompleteAnswerError("not all", partial=(), failures={("a", 0): away})})
    assert search(admin, "a", "b") == ["topic 'a' was not searched for transactions that hang: a-0 has no leader"]
    assert admin.searched == ["a", "b"]


def test_a_missing_right_is_reported_only_for_requested_topics() -> None:
    denied = AuthorizationError("no READ")
    assert search(Admin({"a": denied}), "a") == ["topic 'a' was not searched for transactions that hang: no READ"]


def test_no_search_begins_after_the_stop() -> None:
    admin, stopped = Admin({}), threading.Event()
    stopped.set()
    assert search(admin, "a", "b", stopped=stopped) == []
    assert admin.searched == []
