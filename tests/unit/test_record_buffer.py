"""The buffer of a dual write's records before they are sent: order, savepoints, limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.records.record import OffsetAndMetadata
from dualwrite.client.records.send_arguments import Serializers
from dualwrite.errors import IllegalStateError, TransactionTooLargeError
from dualwrite.recipes.core.buffer import BufferedRecord, RecordBuffer


def values(buffer: RecordBuffer) -> list[bytes | None]:
    return [entry.value for entry in buffer if isinstance(entry, BufferedRecord)]


def test_order_is_kept_and_offsets_are_entries_too() -> None:
    buffer = RecordBuffer()
    buffer.send("t", "1")
    buffer.send_offsets({("in", 0): 5}, "group")
    buffer.send("t", "2")
    assert len(buffer) == 3
    assert values(buffer) == [b"1", b"2"]


def test_no_offsets_are_nothing() -> None:
    buffer = RecordBuffer()
    buffer.send_offsets({}, "group")
    assert not buffer


def test_later_changes_by_the_caller_are_not_sent() -> None:
    buffer = RecordBuffer()
    value, offsets = bytearray(b"then"), {("in", 0): 1}
    buffer.send("t", value)
    buffer.send_offsets(offsets, "group")
    value[:] = b"now!"
    offsets[("in", 1)] = 2
    assert values(buffer) == [b"then"]
    assert list(buffer)[1].offsets == {("in", 0): OffsetAndMetadata(1)}  # type: ignore[union-attr]


def test_a_record_whose_block_ends_while_it_is_made_is_refused() -> None:
    def ends(value: str) -> bytes:
        buffer.close()  # as another thread does, behind a slow serializer
        return value.encode()

    buffer = RecordBuffer(serializers=Serializers(None, ends))
    with pytest.raises(IllegalStateError, match="has ended"):
        buffer.send("t", "1")
    assert not buffer


def test_the_limit_counts_kept_records_only() -> None:
    buffer = RecordBuffer(max_bytes=1_000)
    for _ in range(10):
        buffer.savepoint("s")
        buffer.send("t", b"x" * 600)
        buffer.roll_back_to_savepoint("s")
    buffer.send("t", b"x" * 600)
    with pytest.raises(TransactionTooLargeError, match="max_buffered_bytes=1000"):
        buffer.send("t", b"x" * 100, headers=[("name", b"x" * 500)])
    assert len(buffer) == 1


_STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "savepoint", "release", "rollback"]), st.sampled_from("abc")), max_size=40
)


@given(_STEPS)
def test_savepoints_as_a_database_has_them(steps: list[tuple[str, str]]) -> None:
    """Compare with a model that copies everything at each savepoint."""
    buffer, model, saved = RecordBuffer(), [], list[tuple[str, list[bytes]]]()
    for number, (step, name) in enumerate(steps):
        found = next((i for i in reversed(range(len(saved))) if saved[i][0] == name), None)
        if step == "send":
            buffer.send("t", str(number))
            model.append(str(number).encode())
        elif step == "savepoint":
            buffer.savepoint(name)
            saved.append((name, list(model)))
        elif found is not None and step == "release":
            buffer.release_savepoint(name)
            del saved[found:]
        elif found is not None:
            buffer.roll_back_to_savepoint(name)
            model = list(saved[found][1])
            del saved[found + 1 :]
    assert values(buffer) == model
