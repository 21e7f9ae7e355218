"""Where a query starts, how far a batch reads, and lost records; without Spark and without Kafka."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from itertools import chain, repeat
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from spark_sink.errors import SinkOptionError, SourceDataLossError, SourceReadError
from spark_sink.reading.clients import OffsetOutOfRangeError
from spark_sink.reading.offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    Partition,
    Position,
    from_checkpoint,
    from_json,
    limited,
    ranges_between,
    split,
    to_json,
)
from spark_sink.reading.options import parse
from spark_sink.reading.planner import Planner
from spark_sink.reading.source import StreamReader, _what_is_left

At = Position
A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)


class KnownCluster:
    """A cluster with given beginning, last stable offset and high watermark for each partition."""

    def __init__(self, logs: Mapping[Partition, tuple[int, int, int]]) -> None:
        self.logs = dict(logs)
        self.times: dict[Partition, int | None] = {}
        self.topic_ids: dict[str, str] = {}
        self.between: Callable[[], None] = lambda: None
        """Called after the ids were read."""

    def partitions(self, topics: Collection[str] | None) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for each in sorted(self.logs):
            if topics is None or each.topic in topics:
                found.setdefault(each.topic, []).append(each.number)
        return found

    def beginnings(self, partitions: Collection[Partition]) -> Offsets:
        return {each: self.logs[each][0] for each in partitions}

    def ends(self, partitions: Collection[Partition]) -> Offsets:
        return {each: self.logs[each][1] for each in partitions}

    def high_watermarks(self, partitions: Collection[Partition]) -> Offsets:
        return {each: self.logs[each][2] for each in partitions}

    def at_time(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int | None]:
        return {each: self.times[each] for each in partitions}

    def ids(self, topics: Collection[str], expected: Mapping[str, str]) -> Mapping[str, str]:
        found = {topic: self.topic_ids[topic] for topic in topics if topic in self.topic_ids}
        self.between()
        return found

    def close(self) -> None: ...


def planner(logs: Mapping[Partition, tuple[int, int, int]], **options: str) -> Planner:
    given = {"kafka.bootstrap.servers": "b:1", **options}
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        given["subscribe"] = ",".join(sorted({each.topic for each in logs}))
    cluster = KnownCluster(logs)
    return Planner(parse(given), cluster, cluster)


# as text


def test_offsets_are_written_as_sparks_own_source_writes_them() -> None:
    offsets = {Partition("a", 10): 3, B0: 0, Partition("a", 9): 2**40}
    assert json.dumps(to_json(At(offsets))) == '{"a": {"9": 1099511627776, "10": 3}, "b": {"0": 0}}'
    assert from_json(to_json(At(offsets))) == At(offsets)


def test_the_id_of_each_topic_is_written_behind_its_offsets() -> None:
    position = At({B0: 0, A1: 7, A0: 3}, {"b": "b-id", "a": "a-id", "other": "other-id"})
    written = '{"a": {"0": 3, "1": 7, "topicId": "a-id"}, "b": {"0": 0, "topicId": "b-id"}}'
    assert json.dumps(to_json(position)) == written
    assert from_json(json.loads(written)) == At({A0: 3, A1: 7, B0: 0}, {"a": "a-id", "b": "b-id"})


@pytest.mark.parametrize("written", ['{"a": {"topicId": 7}}', '{"a": {"id": 7}}', '{"a": {"0": "7"}}', '{"a": 7}', "7"])
def test_invalid_positions_are_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"is not|has no"):
        from_json(json.loads(written))


def test_chosen_offsets_have_no_topic_id() -> None:
    with pytest.raises(SinkOptionError, match="topicId is only for checkpoints: leave it out"):
        planner({A0: (0, 1, 1)}, startingOffsets='{"a": {"0": 0, "topicId": "x"}}')


offsets_of_some = st.dictionaries(
    st.builds(Partition, st.sampled_from(["a", "b", "c-d"]), st.integers(0, 12)), st.integers(0, 2**50), max_size=8
)


@given(offsets_of_some)
def test_equal_offsets_have_equal_texts(offsets: dict[Partition, int]) -> None:
    backwards = dict(reversed(list(offsets.items())))
    assert json.dumps(to_json(At(offsets))) == json.dumps(to_json(At(backwards)))
    assert from_json(json.loads(json.dumps(to_json(At(offsets))))) == At(offsets)


# the first batch

GROWING = {A0: (3, 8, 8), A1: (0, 5, 5)}


def reader(logs: Mapping[Partition, tuple[int, int, int]], **options: str) -> StreamReader:
    """Return a reader as Spark makes it at each start of a query."""
    known = planner(logs, **options)
    made = StreamReader(known._options, StructType())
    made._cluster = made._topic_ids = known.cluster  # type: ignore[assignment]
    known.cluster.times = {A0: 5, A1: None}  # type: ignore[attr-defined]
    return made


def grown(by: int, *, deleted: int = 0) -> dict[Partition, tuple[int, int, int]]:
    return {each: (first + deleted, end + by, top + by) for each, (first, end, top) in GROWING.items()}


@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ({}, {A0: 9, A1: 6}),
        ({"startingOffsets": '{"a": {"0": -1, "1": 2}}'}, {A0: 9, A1: 2}),
        ({"startingOffsets": '{"a": {"0": -2, "1": -1}}'}, {A0: 3, A1: 6}),
        ({"startingOffsets": "earliest"}, {A0: 3, A1: 0}),
        ({"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"}, {A0: 5, A1: 6}),
    ],
)
def test_a_query_begins_at_the_plan_of_its_first_batch(options: dict[str, str], begins: dict[Partition, int]) -> None:
    """Spark asks for the start before and after the end, and again at each start until the first batch is done."""
    first = reader(GROWING, **options)
    assert first.initialOffset() == reader(grown(7), **options).initialOffset()
    first._cluster.logs = grown(1)  # type: ignore[union-attr]
    written = json.loads(json.dumps(first.latestOffset(first.initialOffset(), ReadAllAvailable())))
    ranges = [OffsetRange(each, begin, grown(1)[each][1]) for each, begin in begins.items()]
    expected = [each for each in ranges if each.size]
    for at_restart in (first, reader(grown(20), **options)):
        found = at_restart.partitions(at_restart.initialOffset(), written)
        assert [each.wanted for each in found] == expected
    assert from_checkpoint(written) == At({each: end for each, (_, end, _) in grown(1).items()})


def test_records_deleted_before_the_first_batch_is_read_are_a_loss() -> None:
    first = reader(GROWING, startingOffsets="earliest")
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    again = reader(grown(0, deleted=2), startingOffsets="earliest")
    with pytest.raises(SourceDataLossError, match="a-0 begins at offset 5 now, but offsets 3 to 4 were not read yet"):
        again.partitions(again.initialOffset(), end)


def test_nothing_new_is_no_batch() -> None:
    stream = reader(GROWING)
    for limit in (ReadAllAvailable(), ReadMaxRows(3)):
        end = stream.latestOffset(stream.initialOffset(), limit)
        assert stream.latestOffset(end, limit) == end
        assert stream.partitions(stream.initialOffset(), end) == stream.partitions(end, end) == []


def test_a_pattern_that_has_lost_its_topics_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.reading.planner.UNKNOWN_FOR_S", 0.0)
    stream = reader(GROWING, subscribePattern="a", failOnDataLoss="false")
    cluster: KnownCluster = stream._cluster  # type: ignore[assignment]
    cluster.topic_ids = dict(OLD)
    start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    steps: list[tuple[dict[Partition, tuple[int, int, int]], dict[str, str], list[OffsetRange]]]
    steps = [({}, {}, []), ({A0: (0, 4, 4)}, NEW, [OffsetRange(A0, 0, 4, "new")])]
    for logs, ids, read in steps:
        cluster.logs, cluster.topic_ids = logs, dict(ids)
        end = stream.latestOffset(start, ReadAllAvailable())
        assert [each.wanted for each in stream.partitions(start, end)] == read
        start = end


def test_a_first_batch_without_its_start_is_refused() -> None:
    stream = reader(GROWING)
    with pytest.raises(SourceReadError, match="lacks the offsets at which the query began"):
        stream.partitions(stream.initialOffset(), {"a": {"0": 8, "1": 5}})
    with pytest.raises(SinkOptionError, match="@start"):
        planner(GROWING, startingOffsets='{"a": {"0": 8, "1": 5}, "@start": {"a": {"0": 1}}}')


# a limit


@given(
    st.dictionaries(
        st.builds(Partition, st.just("a"), st.integers(0, 9)), st.tuples(st.integers(0, 999), st.integers(0, 999))
    ),
    st.integers(1, 2000),
)
def test_a_limit_is_kept_and_no_partition_starves(logs: dict[Partition, tuple[int, int]], most: int) -> None:
    start = {each: low for each, (low, _) in logs.items()}
    end = {each: low + size for each, (low, size) in logs.items()}
    reached = limited(start, end, most)
    busy = [each for each in logs if end[each] > start[each]]
    assert sum(reached.values()) - sum(start.values()) <= max(most, len(busy))
    assert all(start[each] < reached[each] <= end[each] for each in busy)
    assert all(reached[each] == end[each] for each in logs if each not in busy)


def test_a_limit_is_shared_in_proportion() -> None:
    assert limited({A0: 0, A1: 0}, {A0: 900, A1: 100}, 102) == {A0: 1 + 899 * 100 // 998, A1: 1 + 99 * 100 // 998}
    assert limited({A0: 5, A1: 5}, {A0: 10, A1: 6}, 100) == {A0: 10, A1: 6}


# tasks


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 500)), max_size=6),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 300)),
)
def test_pieces_are_the_whole(sizes: list[tuple[int, int]], at_least: int | None, largest: int | None) -> None:
    ranges = [OffsetRange(Partition("a", n), low, low + size) for n, (low, size) in enumerate(sizes)]
    pieces = split(ranges, at_least=at_least, largest=largest)
    assert [(each.partition, offset) for each in pieces for offset in range(each.start, each.end)] == [
        (each.partition, offset) for each in ranges for offset in range(each.start, each.end)
    ]
    assert all(each.size > 0 for each in pieces)
    if largest is not None:
        assert all(each.size <= largest for each in pieces)
    if at_least is not None:
        assert len(pieces) >= min(at_least, sum(each.size for each in ranges))


def test_large_partitions_are_cut_and_small_ones_are_not() -> None:
    ranges = [OffsetRange(A0, 0, 900), OffsetRange(A1, 0, 100)]
    pieces = split(ranges, at_least=10)
    assert [each.size for each in pieces if each.partition == A0] == [100] * 9
    assert [each.size for each in pieces if each.partition == A1] == [100]
    assert split(ranges, at_least=2) == ranges


def test_partitions_with_nothing_have_no_task() -> None:
    assert ranges_between({A0: 4, A1: 2}, {A0: 4, A1: 3}) == [OffsetRange(A1, 2, 3)]


# where a query starts


def test_a_stream_starts_at_the_end_and_a_batch_query_at_the_beginning() -> None:
    logs = {A0: (3, 8, 9), A1: (0, 5, 5)}
    assert planner(logs).starting(LATEST) == At({A0: 8, A1: 5})
    assert planner(logs).starting(EARLIEST) == At({A0: 3, A1: 0})
    assert planner(logs, startingOffsets="earliest").starting(LATEST) == At({A0: 3, A1: 0})


def test_chosen_offsets_and_the_two_ends_among_them() -> None:
    logs = {A0: (3, 8, 9), A1: (1, 5, 5), B0: (0, 2, 2)}
    chosen = '{"a": {"0": 4, "1": -2}, "b": {"0": -1}}'
    assert planner(logs, startingOffsets=chosen).starting(LATEST) == At({A0: 4, A1: 1, B0: 2})


@pytest.mark.parametrize(
    ("chosen", "named"), [('{"a": {"0": 4}}', "a-1 is"), ('{"a": {"0": 4, "1": 1, "7": 1, "8": 1}}', "a-7, a-8 are")]
)
def test_chosen_offsets_name_every_partition(chosen: str, named: str) -> None:
    with pytest.raises(
        SinkOptionError,
        match=f"Offsets must have every partition that is read, and no other; {named} only in one of the two",
    ):
        planner({A0: (0, 8, 8), A1: (0, 5, 5)}, startingOffsets=chosen).starting(LATEST)


@pytest.mark.parametrize("chosen", [2, 10])
def test_chosen_offsets_that_are_not_there(chosen: int, caplog: pytest.LogCaptureFixture) -> None:
    written, logs = f'{{"a": {{"0": {chosen}}}}}', {A0: (3, 8, 9)}
    with pytest.raises(SourceDataLossError, match=f"startingOffsets: a-0 has offsets 3 to 9, but not {chosen}"):
        planner(logs, startingOffsets=written).starting(LATEST)
    with caplog.at_level(logging.WARNING, "spark_sink"):
        found = planner(logs, startingOffsets=written, failOnDataLoss="false").starting(LATEST)
    assert found == At({A0: 3 if chosen == 2 else 9})
    assert "the query continues without these records" in caplog.text


def test_a_time_to_start_at() -> None:
    starting = planner({A0: (0, 8, 8), A1: (0, 5, 5)}, startingTimestamp="1000")
    cluster: KnownCluster = starting.cluster  # type: ignore[assignment]
    cluster.times = {A0: 4, A1: 2}
    assert starting.starting(LATEST) == At({A0: 4, A1: 2})
    cluster.times = {A0: 4, A1: None}
    with pytest.raises(SourceReadError, match="a-1 has no record as late as 1000"):
        starting.starting(LATEST)


def test_a_time_that_nothing_is_as_late_as() -> None:
    starting = planner({A0: (0, 8, 8)}, startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest")
    starting.cluster.times = {A0: None}  # type: ignore[attr-defined]
    assert starting.starting(LATEST) == At({A0: 8})


@pytest.mark.parametrize(
    ("option", "value"),
    [("subscribe", "a,nobody"), ("assign", '{"a": [0], "nobody": [0]}'), ("assign", '{"a": [0, 4]}')],
)
def test_topics_that_do_not_exist(option: str, value: str) -> None:
    with pytest.raises(SourceReadError, match=rf"{option}: (nobody|nobody-0|a-4) is not in Kafka"):
        planner({A0: (0, 8, 8)}, **{option: value}).starting(EARLIEST)


def test_a_pattern_is_of_whole_names_and_waits() -> None:
    logs = {A0: (0, 8, 8), Partition("ab", 0): (0, 1, 1)}
    assert planner(logs, subscribePattern="a").starting(EARLIEST) == At({A0: 0})
    assert planner(logs, subscribePattern="z.*").starting(EARLIEST) == At({})


# how far a batch goes


def test_a_batch_of_a_stream_ends_at_the_last_stable_offset() -> None:
    assert planner({A0: (0, 8, 20)}).latest(At({A0: 3})) == At({A0: 8})


def test_new_partitions_are_found_and_read_from_their_beginning() -> None:
    found = planner({A0: (0, 8, 8), A1: (0, 5, 5)})
    end = found.latest(At({A0: 3}))
    assert end == At({A0: 8, A1: 5})
    assert found.ranges(At({A0: 3}), end) == [OffsetRange(A0, 3, 8), OffsetRange(A1, 0, 5)]
    assert found.limited(At({A0: 3}), end, 4) == At({A0: 3 + 1 + 4 * 2 // 8, A1: 0 + 1 + 4 * 2 // 8})


def test_new_topics_of_a_pattern_are_found() -> None:
    found = planner({A0: (0, 8, 8), B0: (0, 2, 2)}, subscribePattern="a|b")
    assert found.latest(At({A0: 8})) == At({A0: 8, B0: 2})


@pytest.mark.parametrize("start", [7, 9])
def test_an_open_transaction_before_a_chosen_start_means_nothing_to_read_yet(start: int) -> None:
    waiting = planner({A0: (0, 4, 9)}, startingOffsets=f'{{"a": {{"0": {start}}}}}')
    assert waiting.starting(LATEST) == At({A0: start})
    assert waiting.latest(At({A0: start})) == At({A0: start})


def test_a_start_behind_the_high_watermark_is_a_loss() -> None:
    assert planner({A0: (0, 4, 9)}, failOnDataLoss="false").latest(At({A0: 10})) == At({A0: 4})


# lost records


def lost(sentence: str, found: Planner, start: Position, end: Position | None = None) -> None:
    with pytest.raises(SourceDataLossError, match=sentence) as refused:
        found.latest(start) if end is None else found.ranges(start, end)
    assert "start it with failOnDataLoss=false" in str(refused.value)


def test_the_beginning_is_gone() -> None:
    logs = {A0: (6, 9, 9)}
    lost("a-0 begins at offset 6 now, but offsets 2 to 5 were not read yet", planner(logs), At({A0: 2}), At({A0: 9}))
    assert planner(logs, failOnDataLoss="false").ranges(At({A0: 2}), At({A0: 9})) == [OffsetRange(A0, 6, 9)]
    assert planner(logs, failOnDataLoss="false").ranges(At({A0: 2}), At({A0: 4})) == []
    assert planner(logs).ranges(At({A0: 6}), At({A0: 9})) == [OffsetRange(A0, 6, 9)]


def test_a_new_partition_whose_beginning_is_gone() -> None:
    logs = {A0: (0, 8, 8), A1: (2, 5, 5)}
    lost("a-1 is new, but its first 2 offsets were already deleted", planner(logs), At({A0: 8}), At({A0: 8, A1: 5}))
    assert planner(logs, failOnDataLoss="false").ranges(At({A0: 8}), At({A0: 8, A1: 5})) == [OffsetRange(A1, 2, 5)]


BOTH = {"a": "a-id", "b": "b-id"}


def test_a_deleted_topic(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its offsets stay, by which it is known if it comes back; without them it would be read again."""
    monkeypatch.setattr("spark_sink.reading.planner.UNKNOWN_FOR_S", 0.0)
    logs, begin = {A0: (0, 8, 8)}, At({A0: 7, B0: 3}, BOTH)
    missing = "b-0 of the checkpoint is not in Kafka"
    with pytest.raises(SourceDataLossError, match=missing):
        recreated(logs, {"a": "a-id"}, subscribe="a,b")[0].latest(begin)
    found, cluster = recreated(logs, {"a": "a-id"}, subscribe="a,b", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "spark_sink"):
        end = found.latest(begin)
    assert missing in caplog.text
    assert end == At({A0: 8, B0: 3}, BOTH)
    assert found.ranges(begin, end) == [OffsetRange(A0, 7, 8, "a-id")]
    cluster.logs[B0], cluster.topic_ids = (0, 5, 5), BOTH
    assert found.ranges(end, found.latest(end)) == [OffsetRange(B0, 3, 5, "b-id")]


def test_a_deleted_topic_without_an_id_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its old offset, the first records of a new topic would be skipped."""
    monkeypatch.setattr("spark_sink.reading.planner.UNKNOWN_FOR_S", 0.0)
    begin, found = At({A0: 8, B0: 3}), planner({A0: (0, 8, 8)}, subscribePattern="a|b", failOnDataLoss="false")
    cluster: KnownCluster = found.cluster  # type: ignore[assignment]
    end = found.latest(begin)
    assert end == At({A0: 8})
    lost("b-0 of the checkpoint is no longer in Kafka", planner({A0: (0, 8, 8)}), begin, end)
    cluster.logs[B0] = (0, 5, 5)
    assert found.ranges(end, found.latest(end)) == [OffsetRange(B0, 0, 5)]


def test_a_deleted_topic_is_waited_for_and_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("spark_sink.reading.planner.time", clock)
    stream = reader({A0: (0, 8, 8)}, subscribe="a,b", failOnDataLoss="false")
    cluster: KnownCluster = stream._cluster  # type: ignore[assignment]
    asked: list[set[str]] = []

    def ids(topics: Collection[str], expected: Mapping[str, str]) -> Mapping[str, str]:
        asked.append(set(topics))
        return {topic: BOTH[topic] for topic in topics}

    monkeypatch.setattr(cluster, "ids", ids)
    start = to_json(At({A0: 8, B0: 3}, BOTH))
    waited = []
    for logs in ({}, {}, {B0: (0, 3, 3)}, {}):
        slept.clear()
        cluster.logs = {A0: (0, 8, 8), **logs}
        end = stream.latestOffset(start, ReadAllAvailable())
        assert stream.partitions(start, end) == []
        waited.append(bool(slept))
    assert waited == [True, False, False, True]
    assert asked[:4] == [{"a"}, set(), {"a"}, set()]
    assert caplog.text.count("b-0 of the checkpoint is not in Kafka") == 2


@pytest.mark.parametrize("behind", [{}, {A1: (0, 5, 5)}], ids=["missing", "shorter"])
@pytest.mark.parametrize("option", [{"subscribe": "a"}, {"assign": '{"a": [0, 1]}'}])
def test_a_partition_whose_broker_is_behind_keeps_its_offset(
    monkeypatch: pytest.MonkeyPatch, option: dict[str, str], behind: dict[Partition, tuple[int, int, int]]
) -> None:
    monkeypatch.setattr("spark_sink.reading.planner.UNKNOWN_FOR_S", 0.0)
    found, _ = recreated({A0: (0, 20, 20), **behind}, OLD, **option)
    assert found.latest(At({A0: 8, A1: 9}, OLD)) == At({A0: 20, A1: 9}, OLD)


def test_a_topic_that_a_broker_does_not_know_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.reading.planner.UNKNOWN_FOR_S", 60.0)
    found = planner({A0: (0, 8, 8)}, subscribe="a,b")
    cluster: KnownCluster = found.cluster  # type: ignore[assignment]
    answers = [{}, {"a": [0]}, {"a": [0], "b": [0]}]
    cluster.logs[B0] = (0, 3, 3)
    cluster.partitions = lambda topics: answers.pop(0)  # type: ignore[method-assign]
    assert found.latest(At({A0: 8, B0: 3})) == At({A0: 8, B0: 3})
    assert answers == []


def test_a_topic_that_the_options_no_longer_name() -> None:
    logs, begin = {A0: (0, 8, 8), B0: (0, 3, 3)}, At({A0: 7, B0: 3})
    lost("b-0 of the checkpoint is no longer in Kafka", planner(logs, subscribe="a"), begin)
    assert planner(logs, subscribe="a", failOnDataLoss="false").latest(begin) == At({A0: 8})


def test_a_topic_that_was_recreated() -> None:
    logs = {A0: (0, 2, 2)}
    lost("a-0 ends at offset 2, but was read up to 8 before: it was recreated", planner(logs), At({A0: 8}))
    found = planner(logs, failOnDataLoss="false")
    assert found.latest(At({A0: 8})) == At({A0: 2})
    assert found.ranges(At({A0: 8}), At({A0: 2})) == []


# a topic that was deleted and created again

OLD, NEW, NEWEST = {"a": "old"}, {"a": "new"}, {"a": "newest"}
ANOTHER = "the topic a was deleted and created again: .* belong to the topic with the id old, and it has the id new now"


def recreated(
    logs: Mapping[Partition, tuple[int, int, int]], ids: Mapping[str, str] = NEW, **options: str
) -> tuple[Planner, KnownCluster]:
    found = planner(logs, **options)
    cluster: KnownCluster = found.cluster  # type: ignore[assignment]
    cluster.topic_ids = dict(ids)
    return found, cluster


def test_the_new_topic_is_read_from_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    found, _ = recreated({A0: (3, 50, 50)}, failOnDataLoss="false")
    start, end = At({A0: 8}, OLD), At({A0: 50}, NEW)
    with caplog.at_level(logging.WARNING, "spark_sink"):
        assert found.ranges(start, end) == [OffsetRange(A0, 3, 50, "new")]
    assert "has the id new now" in caplog.text
    assert "the query continues without these records" in caplog.text
    part = found.limited(start, end, 7)
    assert part == At({A0: 10}, NEW)
    assert found.ranges(start, part) == [OffsetRange(A0, 3, 10, "new")]
    assert found.ranges(part, end) == [OffsetRange(A0, 10, 50, "new")]


@pytest.mark.parametrize("size", [50, 2, 0])
def test_recreated_topics_between_two_batches(size: int) -> None:
    logs, start = {A0: (0, size, size)}, At({A0: 8}, OLD)
    lost(ANOTHER, recreated(logs)[0], start)
    assert recreated(logs, failOnDataLoss="false")[0].latest(start) == At({A0: size}, NEW)


def test_with_fewer_partitions_or_more() -> None:
    fewer = At({A0: 8, A1: 8}, OLD)
    lost(ANOTHER, recreated({A0: (0, 9, 9)})[0], fewer, At({A0: 9}, NEW))
    found, _ = recreated({A0: (0, 9, 9)}, failOnDataLoss="false")
    assert found.ranges(fewer, found.latest(fewer)) == [OffsetRange(A0, 0, 9, "new")]
    more, _ = recreated({A0: (0, 9, 9), A1: (0, 9, 9)}, failOnDataLoss="false")
    begin = At({A0: 8}, OLD)
    assert more.ranges(begin, more.latest(begin)) == [OffsetRange(A0, 0, 9, "new"), OffsetRange(A1, 0, 9, "new")]


def test_while_the_end_of_a_batch_is_looked_up() -> None:
    """The ids were read, and the ends are those of the new topic: they must not count as offsets of the old one."""
    for fail in ("true", "false"):
        found, cluster = recreated({A0: (0, 9, 9)}, OLD, failOnDataLoss=fail)

        def recreate(cluster: KnownCluster = cluster) -> None:
            cluster.logs, cluster.topic_ids = {A0: (0, 50, 50)}, dict(NEW)

        cluster.between = recreate
        end = found.latest(At({A0: 8}, OLD))
        assert end == At({A0: 50}, OLD)
        if fail == "true":
            lost(ANOTHER, found, At({A0: 8}, OLD), end)
        else:
            assert found.ranges(At({A0: 8}, OLD), end) == []
            assert found.latest(end) == At({A0: 50}, NEW)
            assert found.ranges(end, At({A0: 50}, NEW)) == [OffsetRange(A0, 0, 50, "new")]


def test_a_topic_recreated_between_the_end_of_a_batch_and_its_plan() -> None:
    start, end = At({A0: 8}, OLD), At({A0: 20}, OLD)  # as in the checkpoint of a batch that is started again
    lost(ANOTHER, recreated({A0: (0, 50, 50)})[0], start, end)
    found, _ = recreated({A0: (0, 50, 50)}, failOnDataLoss="false")
    assert found.ranges(start, end) == []
    assert found.ranges(end, found.latest(end)) == [OffsetRange(A0, 0, 50, "new")]


def test_again_before_the_new_topic_was_read() -> None:
    start, end = At({A0: 8}, OLD), At({A0: 20}, NEW)
    lost("the id new, and it has the id newest now", recreated({A0: (0, 5, 5)}, NEWEST)[0], start, end)
    found, _ = recreated({A0: (0, 5, 5)}, NEWEST, failOnDataLoss="false")
    assert found.ranges(start, end) == []
    assert found.ranges(end, found.latest(end)) == [OffsetRange(A0, 0, 5, "newest")]


def test_deleted_and_not_created_again_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.reading.planner.UNKNOWN_FOR_S", 0.0)
    start, end = At({A0: 8, B0: 1}, OLD), At({A0: 20, B0: 2}, OLD)
    lost("the topic a with the id old, .*, no longer exists", recreated({B0: (0, 2, 2)}, {})[0], start, end)
    found, _ = recreated({B0: (0, 2, 2)}, {}, failOnDataLoss="false")
    assert found.ranges(start, end) == [OffsetRange(B0, 1, 2)]


def test_an_unknown_topic_id_loses_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.reading.planner.UNKNOWN_FOR_S", 0.0)
    found, _ = recreated({A0: (0, 50, 50)}, {}, failOnDataLoss="false")
    with pytest.raises(SourceReadError, match="did not return the id of a: "):
        found.ranges(At({A0: 8}, OLD), At({A0: 20}, OLD))


def test_a_checkpoint_from_before_there_were_ids() -> None:
    found, cluster = recreated({A0: (0, 50, 50)}, OLD)
    end = found.latest(At({A0: 8}))
    assert end == At({A0: 50}, OLD)
    assert found.ranges(At({A0: 8}), end) == [OffsetRange(A0, 8, 50, "old")]
    assert found.ranges(At({A0: 8}), At({A0: 20})) == [OffsetRange(A0, 8, 20, "old")]
    cluster.topic_ids = dict(NEW)
    lost(ANOTHER, found, end, At({A0: 60}, NEW))


def test_a_topic_id_that_is_unknown_once_is_not_forgotten() -> None:
    found, cluster = recreated({A0: (0, 50, 50)}, {})
    end = found.latest(At({A0: 8}, OLD))
    assert end == At({A0: 50}, OLD)
    cluster.topic_ids = dict(NEW)
    lost(ANOTHER, found, At({A0: 8}, OLD), end)


def test_a_batch_query_reads_the_topic_that_it_was_planned_for() -> None:
    found, cluster = recreated({A0: (0, 9, 9)}, OLD)
    start = found.starting(EARLIEST)
    end = found.ending(start)
    assert (start, end) == (At({A0: 0}, OLD), At({A0: 9}, OLD))
    assert found.ranges(start, end) == [OffsetRange(A0, 0, 9, "old")]
    cluster.topic_ids = dict(NEW)
    lost(ANOTHER, found, start, end)


def left(
    monkeypatch: pytest.MonkeyPatch,
    ends: list[int],
    *,
    look_for_ms: int,
    fail_on_data_loss: bool = False,
    error: OffsetOutOfRangeError | SourceReadError | None = None,
) -> OffsetRange:
    """Return what is left of the offsets from 500 to 900, if these are the answers to the lookups of the end."""
    cluster = KnownCluster({A0: (0, 0, 0)})
    answers = chain(ends, repeat(ends[-1]))
    cluster.high_watermarks = lambda partitions: {A0: next(answers)}  # type: ignore[method-assign]
    monkeypatch.setattr("spark_sink.reading.source.connect", lambda options: cluster)
    given = {"failOnDataLoss": str(fail_on_data_loss).lower(), "kafkaConsumer.pollTimeoutMs": str(look_for_ms)}
    options = parse({"kafka.bootstrap.servers": "b:1", "subscribe": "a", **given})
    return _what_is_left(options, OffsetRange(A0, 500, 900, "old"), error or OffsetOutOfRangeError())


def test_a_broker_without_offsets_that_exist_loses_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    for ends in ([1000], [400, 700, 900]):
        with pytest.raises(SourceReadError, match="a broker has no offset 500 of a-0, which begins at offset 0"):
            left(monkeypatch, ends, look_for_ms=60_000)
        with pytest.raises(SourceReadError, match="nothing came"):
            left(monkeypatch, ends, look_for_ms=60_000, error=SourceReadError("nothing came"))


def test_a_log_truncated_before_a_recorded_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the batch would fail at every start."""
    assert left(monkeypatch, [400], look_for_ms=1) == OffsetRange(A0, 500, 500, "old")
    with pytest.raises(SourceDataLossError, match="a-0 ends at offset 400 now, but offsets 500 to 899 were not read"):
        left(monkeypatch, [400], look_for_ms=1, fail_on_data_loss=True)


def test_pieces_of_a_range_have_its_topic_id() -> None:
    found, _ = recreated({A0: (4, 9, 9)}, OLD, minPartitions="2", failOnDataLoss="false")
    assert found.ranges(At({A0: 0}, OLD), At({A0: 8}, OLD)) == [
        OffsetRange(A0, 4, 6, "old"),
        OffsetRange(A0, 6, 8, "old"),
    ]


# batch queries


def test_a_batch_query_ends_at_the_last_stable_offset() -> None:
    logs = {A0: (2, 8, 20), A1: (0, 5, 5)}
    start = planner(logs).starting(EARLIEST)
    assert planner(logs).ending(start) == At({A0: 8, A1: 5})
    assert planner(logs, endingOffsets='{"a": {"0": 6, "1": -1}}').ending(start) == At({A0: 6, A1: 5})


def test_the_end_of_a_batch_query_is_not_before_its_start() -> None:
    logs = {A0: (2, 8, 8)}
    with pytest.raises(SinkOptionError, match="a-0 would be read from offset 5 to offset 3, which is lower"):
        planner(logs, endingOffsets='{"a": {"0": 3}}').ending(At({A0: 5}))


def test_the_end_of_a_batch_query_is_not_behind_an_open_transaction() -> None:
    logs = {A0: (2, 8, 20)}
    with pytest.raises(SourceReadError, match="a-0 can be read up to offset 8, but not to 12: a transaction is open"):
        planner(logs, endingOffsets='{"a": {"0": 12}}').ending(At({A0: 5}))


def test_a_time_to_end_at() -> None:
    ending = planner({A0: (0, 8, 8), A1: (0, 5, 5)}, endingTimestamp="1000")
    ending.cluster.times = {A0: 4, A1: None}  # type: ignore[attr-defined]
    assert ending.ending(At({A0: 0, A1: 0})) == At({A0: 4, A1: 5})
