"""The statements in the message of COMMIT: texts without parameters, for any values."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.postgres import WRITE, BeforeCommit, with_literals
from dualwrite.recipes.sql.transaction_control import POSTGRES, statements_in

PINNED = PinnedTables("shop", '"shop"', 4711)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("'\\;:$-"))


@pytest.mark.parametrize("reading", POSTGRES.readings)
@given(transactional_id=TEXTS, manifest=TEXTS)
def test_the_write_and_commit_are_two_statements(
    reading: re.Pattern[str], transactional_id: str, manifest: str
) -> None:
    text = written(transactional_id, manifest)
    assert text.isascii()
    found = statements_in(text, reading)
    assert found is not None
    assert [statement.split()[0] for statement in found] == ["WITH", "COMMIT"]


def test_the_content_of_a_parameter_is_not_taken_for_another_parameter() -> None:
    text = with_literals("SELECT :a, CAST(:b AS text), x::int, :a", {"a": ":b", "b": ":a"})
    assert text == "SELECT E':b', CAST(E':a' AS text), x::int, E':b'"


def test_only_the_name_of_the_table_is_replaced() -> None:
    text = written("kafka_transaction_state", "kafka_transaction_state STATE_TABLE_OID :mark")
    assert "manifest = E'kafka_transaction_state STATE_TABLE_OID :mark'" in text
    assert "transactional_id = E'kafka_transaction_state' AND" in text
    assert text.count('"shop".kafka_transaction_state') == text.count("kafka_transaction_state") - 2


def test_an_empty_manifest_leaves_none() -> None:
    assert "manifest = NULL, updated_at = CURRENT_TIMESTAMP WHERE transactional_id = E'it''s'" in written("it's", "")


def written(transactional_id: str, manifest: str) -> str:
    values = {"id": transactional_id, "previous": "", "new": "42:7", "manifest": manifest or None}
    return BeforeCommit(PINNED.sql(WRITE), {**values, "mark": "aa", "token": "aa"}).script
