"""The statements in the message of COMMIT: texts without parameters, whatever is in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.recipes.sql.lexer import POSTGRES_READINGS, Reading, cut
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.postgres import attach_manifest, lock_free_row, with_literals, write_and_commit

PINNED = PinnedTables("shop", '"shop"', 4711)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("'\\;:$-"))


@pytest.mark.parametrize("reading", POSTGRES_READINGS)
@given(transactional_id=TEXTS, manifest=TEXTS)
def test_it_is_one_statement_in_ascii_at_every_setting(reading: Reading, transactional_id: str, manifest: str) -> None:
    text = attach_manifest(PINNED, transactional_id, "42:7", manifest)
    assert text.isascii()
    found = cut(text, reading)
    assert (len(found.statements), found.problem) == (1, None)


@pytest.mark.parametrize("reading", POSTGRES_READINGS)
@given(transactional_id=TEXTS, manifest=TEXTS)
def test_the_write_and_commit_are_two_statements(reading: Reading, transactional_id: str, manifest: str) -> None:
    text = write_and_commit(PINNED, transactional_id, previous="", new="42:7", manifest=manifest, mark="aa", token="aa")
    assert text.isascii()
    found = cut(text, reading)
    assert ([tokens[0] for tokens in found.statements], found.problem) == (["WITH", "COMMIT"], None)


@pytest.mark.parametrize("reading", POSTGRES_READINGS)
@given(transactional_id=TEXTS)
def test_the_lock_is_one_statement(reading: Reading, transactional_id: str) -> None:
    found = cut(lock_free_row(PINNED, transactional_id), reading)
    assert (len(found.statements), found.problem) == (1, None)


def test_what_a_parameter_holds_is_not_taken_for_another_parameter() -> None:
    text = with_literals("SELECT :a, CAST(:b AS text), x::int, :a", a=":b", b=":a")
    assert text == "SELECT E':b', CAST(E':a' AS text), x::int, E':b'"


def test_only_the_name_of_the_table_is_replaced() -> None:
    text = attach_manifest(PINNED, "kafka_transaction_state", "42:7", "kafka_transaction_state STATE_TABLE_OID :mark")
    assert text == (
        "UPDATE \"shop\".kafka_transaction_state SET manifest = E'kafka_transaction_state STATE_TABLE_OID :mark'"
        " WHERE transactional_id = E'kafka_transaction_state' AND prepared_transaction_state = E'42:7'"
    )


def test_an_empty_manifest_leaves_none() -> None:
    assert "SET manifest = NULL WHERE transactional_id = E'it''s'" in attach_manifest(PINNED, "it's", "42:7", "")
