"""Where Kafka stored the records of a prepared transaction, as a text for the database beside the prepared state.

With it, the log shows the end of a transaction when the coordinator no longer knows it, and the records of a decided
transaction that a broker aborted can be read and published again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any, Final, NamedTuple

from dualwrite.errors import AnotherClusterError
from dualwrite.prepared_state import PreparedTxnState

MAX_MANIFEST_BYTES: Final = 60_000
"""The longest text of a manifest; the smallest column of those that hold it is MySQL's TEXT, of 65,535 bytes."""

_FORMAT: Final = 2
_BY_TOPIC: Final = attrgetter("topic")
_RANGE: Final = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]+)(?:\+([0-9a-f]+)(?:-([0-9a-f]+))?)?", re.ASCII)
"""`partition:first+more-others`, in hexadecimal digits."""


class PartitionManifest(NamedTuple):
    """The records of a transaction in one partition; records of others may stand between them."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where Kafka stored the records of one prepared transaction."""

    prepared_state: PreparedTxnState
    """The producer id and epoch of the records. A manifest beside another state belongs to an older transaction."""
    cluster_id: str
    """The id of the Kafka cluster; "" if unknown."""
    partitions: tuple[PartitionManifest, ...]
    has_offsets: bool
    """Whether consumed offsets went with the transaction: they are not in the log, so it cannot be repaired."""

    def __str__(self) -> str:
        """Return the text to store, in ASCII, equal for equal manifests; "" if it would be too long to be stored.

        5,000 partitions of a topic fit, with some records in each. Each is `partition:first+more-others` in hexadecimal
        digits: the first offset, how many offsets follow it up to the last one, and how many of these are of records of
        other transactions. Redundant parts are left out: zeros behind `first`, and the number of a partition that
        follows the one before.
        """
        topics = []
        for topic, parts in groupby(sorted(self.partitions), _BY_TOPIC):
            topics.append(f'{encode_basestring_ascii(topic)}:"{",".join(_ranges_of(parts))}"')
        text = (
            f'{{"format":{_FORMAT},"prepared":"{self.prepared_state}","cluster":'
            f'{encode_basestring_ascii(self.cluster_id)},"offsets":{"true" if self.has_offsets else "false"},'
            f'"topics":{{{",".join(topics)}}}}}'
        )
        return text if len(text) <= MAX_MANIFEST_BYTES else ""

    def is_elsewhere(self, cluster_id: str | None) -> bool:
        """Return whether the transaction was prepared in another cluster; False if one of the two ids is unknown."""
        return bool(cluster_id and self.cluster_id) and cluster_id != self.cluster_id

    def elsewhere(self, cluster_id: str, transactional_id: str | None) -> AnotherClusterError:
        """Return the error for a cluster in which the transaction was not prepared."""
        whose = f" of transactional id {transactional_id!r}" if transactional_id else ""
        return AnotherClusterError(
            f"the prepared transaction {self.prepared_state}{whose} was prepared in the Kafka cluster "
            f"{self.cluster_id!r}, and this is {cluster_id!r}; neither the database nor a topic was changed: connect "
            "to the cluster in which it was prepared. If that cluster is gone for good, give up what may be in doubt "
            f"there: `dualwrite recover --forget-cluster {self.cluster_id} --all`",
            prepared_in=self.cluster_id,
            found=cluster_id,
        )

    @classmethod
    def beside(cls, state: PreparedTxnState, text: str) -> Manifest | None:
        """Return the manifest that is stored beside a state; None if there is none, or if it names another transaction.

        A state that was changed by hand leaves one that names another. Raises `ValueError` as `parse` does.
        """
        manifest = cls.parse(text)
        return manifest if manifest is not None and manifest.prepared_state == state else None

    @classmethod
    def parse(cls, text: str) -> Manifest | None:
        """Return the manifest of a stored text; None for "".

        Raises `ValueError` if the text is not a manifest, or has a format that a later version of this library wrote.
        """
        if not text:
            return None
        try:
            stored = json.loads(text)
            found = stored["format"]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise _unreadable(text) from None
        if found != _FORMAT:
            raise ValueError(
                f"the manifest has format {found!r} and this version of dualwrite reads format {_FORMAT}: upgrade it; "
                "nothing was changed"
            )
        try:
            return cls._of(stored)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise _unreadable(text) from None

    @classmethod
    def _of(cls, stored: Any) -> Manifest:
        prepared, cluster_id, has_offsets = stored["prepared"], stored["cluster"], stored["offsets"]
        topics = stored["topics"].items()
        partitions = tuple(
            PartitionManifest(topic, *numbers) for topic, parts in topics for numbers in _read_ranges(parts)
        )
        if len({part[:2] for part in partitions}) < len(partitions):
            raise ValueError(partitions)
        if not (prepared and isinstance(cluster_id, str) and isinstance(has_offsets, bool)):
            raise ValueError(stored)
        return cls(PreparedTxnState(prepared), cluster_id, partitions, has_offsets)


def _ranges_of(parts: Iterable[PartitionManifest]) -> Iterator[str]:
    """Yield the texts of the partitions of one topic, in order."""
    expected = 0
    for _, partition, first, last, count in parts:
        text = f"{first:x}" if partition == expected else f"{partition:x}:{first:x}"
        more = last - first
        others = more + 1 - count
        if others:
            yield f"{text}+{more:x}-{others:x}"
        else:
            yield f"{text}+{more:x}" if more else text
        expected = partition + 1


def _read_ranges(text: str) -> Iterator[tuple[int, int, int, int]]:
    expected = 0
    for each in text.split(","):
        found = _RANGE.fullmatch(each)
        if found is None:
            raise ValueError(each)
        partition, first, more, others = (int(digits or "0", 16) for digits in found.groups())
        if others > more:
            raise ValueError(each)
        if found[1] is None:
            partition = expected
        yield partition, first, first + more, more + 1 - others
        expected = partition + 1


def _unreadable(text: str) -> ValueError:
    return ValueError(
        f"the manifest of a prepared transaction cannot be read: {text[:100]!r}; it was damaged, or is another "
        "column's text. Nothing was changed"
    )
