"""The exact string form of a prepared transaction's identity (KIP-939)."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.prepared_state import PreparedTxnState


@pytest.mark.parametrize("empty", [PreparedTxnState(), PreparedTxnState(None), PreparedTxnState("")])
def test_empty_states_are_equal(empty: PreparedTxnState) -> None:
    assert empty == PreparedTxnState.of(producer_id=-1, producer_epoch=-1)
    assert (empty.producer_id, empty.producer_epoch, empty.is_empty, str(empty)) == (-1, -1, True, "")


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
def test_a_printed_state_parses_to_itself(producer_id: int, producer_epoch: int) -> None:
    text = f"{producer_id}:{producer_epoch}"
    state = PreparedTxnState(text)
    assert (state.producer_id, state.producer_epoch, state.is_empty) == (producer_id, producer_epoch, False)
    assert str(state) == text
    same = PreparedTxnState.of(producer_id=producer_id, producer_epoch=producer_epoch)
    assert state == same
    assert hash(state) == hash(same)
    assert pickle.loads(pickle.dumps(state)) == state


@pytest.mark.parametrize(
    "text",
    [
        *("42", "42:7:1", "42:", ":7", ":", "a:7", "42:b", "-1:-1", "42:-7", "-42:7", "42:32768", f"{2**63}:7"),
        *(" 42:7", "42:7 ", "42 :7", "4_2:7", "+42:7", "\u0664\u0662:7", "42:7\n", " "),
    ],
)
def test_anything_else_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"prepared transaction state|is not between"):
        PreparedTxnState(text)


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(-1, 0), (0, -1), (-2, -2), (1, 32768)])
def test_of_refuses_numbers_out_of_range(producer_id: int, producer_epoch: int) -> None:
    with pytest.raises(ValueError, match="is not between"):
        PreparedTxnState.of(producer_id=producer_id, producer_epoch=producer_epoch)


def test_differs_by_either_number_and_from_other_types() -> None:
    assert PreparedTxnState("42:7") != PreparedTxnState("42:8")
    assert PreparedTxnState("42:7") != PreparedTxnState("43:7")
    assert PreparedTxnState("42:7") != "42:7"


def test_is_immutable() -> None:
    state = PreparedTxnState("42:7")
    with pytest.raises(AttributeError):
        state.producer_id = 1  # type: ignore[misc]
    for slot in type(state).__slots__:
        with pytest.raises(AttributeError):
            delattr(state, slot)
    assert str(state) == "42:7"


@pytest.mark.parametrize("other", [5, 42.7, b"42:7", ("42", "7")])
def test_only_a_text_is_parsed(other: object) -> None:
    with pytest.raises(TypeError, match="is a text such as '42:7'"):
        PreparedTxnState(other)  # type: ignore[arg-type]


def test_empty_is_false() -> None:
    assert not PreparedTxnState()
    assert PreparedTxnState("0:0")
