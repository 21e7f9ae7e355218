"""The manifest of a prepared transaction: its text, and the records that the open transaction notes for it."""

from __future__ import annotations

import bisect
import json

import pytest

from dualwrite.client.transactions.manifest import MAX_MANIFEST_BYTES, Manifest, PartitionManifest
from dualwrite.client.transactions.open_transaction import OpenTransaction
from dualwrite.prepared_state import PreparedTxnState

STATE = PreparedTxnState("4711:5")
PARTS = (
    PartitionManifest("orders", 0, 100, 103, 4),
    PartitionManifest("orders", 12, 7, 9, 2),
    PartitionManifest("payments", 0, 0, 0, 1),
)
TEXT = (
    '{"format":2,"prepared":"4711:5","cluster":"MkU3OEVBNTcwNTJENDM2Qk","offsets":false,'
    '"topics":{"orders":"64+3,c:7+2-1","payments":"0"}}'
)
MANIFEST = Manifest(STATE, "MkU3OEVBNTcwNTJENDM2Qk", PARTS, has_offsets=False)


def test_the_text() -> None:
    assert str(MANIFEST) == TEXT
    assert Manifest.parse(TEXT) == MANIFEST


def test_the_text_does_not_depend_on_the_order_of_partitions() -> None:
    assert str(Manifest(STATE, MANIFEST.cluster_id, PARTS[::-1], has_offsets=False)) == TEXT


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest(STATE, "", (), has_offsets=True),
        Manifest(
            STATE, 'a"b\\c\u00fc\U0001f600', (PartitionManifest("t", 2**31 - 1, 0, 2**63 - 1, 5),), has_offsets=True
        ),
        Manifest(STATE, "c", (PartitionManifest("'; --", 0, 5, 5, 1),), has_offsets=False),
        Manifest(STATE, "c", tuple(PartitionManifest("t", 3 * i // 2, i, 3 * i, i + 1) for i in range(40)), False),
    ],
)
def test_any_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    assert str(manifest).isascii()
    assert json.loads(str(manifest))["format"] == 2
    assert Manifest.parse(str(manifest)) == manifest


def test_no_text_is_no_manifest() -> None:
    assert Manifest.parse("") is None


def test_a_text_that_would_not_fit_is_not_written() -> None:
    def text(count: int) -> str:
        parts = [PartitionManifest("t" * 249, partition, 10**12, 10**12, 1) for partition in range(count)]
        return str(Manifest(STATE, "c", tuple(parts), has_offsets=False))

    fits = bisect.bisect_left(range(10_000), True, key=lambda count: text(count) == "") - 1
    assert fits > 5_000
    assert MAX_MANIFEST_BYTES - 50 < len(text(fits)) <= MAX_MANIFEST_BYTES
    assert text(fits + 1) == ""


def test_five_thousand_partitions_with_some_records_in_each_fit() -> None:
    parts = tuple(PartitionManifest("orders", partition, 10**9, 10**9 + 9, 10) for partition in range(5_000))
    manifest = Manifest(STATE, "MkU3OEVBNTcwNTJENDM2Qk", parts, has_offsets=False)
    assert Manifest.parse(str(manifest)) == manifest


@pytest.mark.parametrize(
    "text",
    [
        "4711:5",
        "{",
        "[]",
        "null",
        "7",
        '"format"',
        "{}",
        "[" * 5_000,
        '{"format":2}',
        TEXT.replace('"4711:5"', '"x"'),
        TEXT.replace('"4711:5"', '""'),
        TEXT.replace('"4711:5"', "null"),
        TEXT.replace("false", "0"),
        TEXT.replace('"MkU3OEVBNTcwNTJENDM2Qk"', "null"),
        TEXT.replace("64+3", "64+"),
        TEXT.replace("64+3", "64-1"),
        TEXT.replace("64+3", "-64"),
        TEXT.replace("64+3", "64+3-4"),
        TEXT.replace("64+3", ""),
        TEXT.replace("64+3", "6G"),
        TEXT.replace("64+3", "6\u0664"),
        TEXT.replace("64+3", " 64"),
        TEXT.replace("64+3", "c:64"),
        TEXT.replace("64+3,", "64+3,,"),
        TEXT.replace('"0"', '""'),
        TEXT.replace('"0"', "0"),
        TEXT.replace('"0"', "[[0,0,0,1]]"),
        TEXT[:-1],
    ],
)
def test_invalid_manifests_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be read.*Nothing was changed"):
        Manifest.parse(text)


def test_the_format_of_a_later_version_is_refused_as_such() -> None:
    with pytest.raises(ValueError, match=r"has format 3 and this version of dualwrite reads format 2: upgrade it"):
        Manifest.parse('{"format":3,"more":[]}')


# ---- the open transaction ---------------------------------------------------------------------------------------


def prepared() -> OpenTransaction:
    transaction = OpenTransaction()
    transaction.prepared_state = STATE
    return transaction


def test_one_batch_without_an_offset_makes_the_manifest_unknown_until_the_end_of_the_transaction() -> None:
    transaction = prepared()
    transaction.stored.add("a", 0, 0, 1)
    transaction.stored.add("a", 0, -1, 1)
    transaction.stored.add("a", 0, 2, 1)
    assert transaction.manifest("c") is None
    transaction.clear()
    transaction.prepared_state = STATE
    transaction.stored.add("a", 0, 2, 1)
    assert transaction.manifest("") == Manifest(STATE, "", (PartitionManifest("a", 0, 2, 2, 1),), has_offsets=False)


def test_the_offsets_of_one_transaction_are_not_those_of_the_next() -> None:
    transaction = prepared()
    transaction.has_offsets = True
    first = transaction.manifest("")
    assert first is not None
    assert first.has_offsets
    transaction.clear()
    transaction.prepared_state = STATE
    second = transaction.manifest("")
    assert second is not None
    assert not second.has_offsets
