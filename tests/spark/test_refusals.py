"""Refusals of the format before it opens a sink; without Spark."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_sink import DualWriteKafka, SinkError, SinkOptionError, open_sinks
from spark_sink.face import StreamWriter
from spark_sink.options import SinkOptions, parse

OPTIONS = {"sinkid": "s", "topic": "t", "kafka.bootstrap.servers": "nowhere:1", "commitstore.url": "sqlite:////s.db"}
SCHEMA = StructType([StructField("value", StringType())])


@pytest.fixture(autouse=True)
def _no_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_sinks, "_sinks", OrderedDict())


class Format(DualWriteKafka):
    """A format whose sink must not be opened."""

    @staticmethod
    def open_sink(options: SinkOptions) -> Any:
        raise AssertionError("a sink was opened")


def test_a_stream() -> None:
    with pytest.raises(SinkOptionError, match="asynchronous progress tracking is refused"):
        Format({**OPTIONS, "asyncprogresstrackingenabled": "true"})
    with pytest.raises(SinkOptionError, match="jobId is only for batch jobs"):
        Format({**OPTIONS, "jobid": "j"}).streamWriter(SCHEMA, False)
    with pytest.raises(SinkOptionError, match=r"foreachBatch\(dualwrite_batch\(\.\.\.\)\) with the update mode"):
        Format(OPTIONS).streamWriter(SCHEMA, True)


def test_a_job() -> None:
    with pytest.raises(SinkOptionError, match=r"start\(\) and save\(\) take no path"):
        Format({**OPTIONS, "path": "/data"})
    with pytest.raises(SinkOptionError, match="a topic cannot be overwritten"):
        Format(OPTIONS).writer(SCHEMA, True)


def test_reading() -> None:
    with pytest.raises(SinkOptionError, match="to read from Kafka, use dualwrite-kafka-source"):
        Format(OPTIONS).schema()


def test_a_continuous_epoch_is_not_committed() -> None:
    writer = Format(OPTIONS).streamWriter(SCHEMA, False)
    with pytest.raises(SinkOptionError, match="the continuous trigger does not give rows to sinks in Python"):
        writer.commit([None, None], 0)


def test_rows_are_written_by_tasks_only() -> None:
    writer = Format(OPTIONS).streamWriter(SCHEMA, False)
    with pytest.raises(SinkError, match="this process is not running one"):
        writer.write(iter(()))


def test_an_abort_that_fails_is_in_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    def broken(options: SinkOptions) -> Any:
        raise OSError("no way to the database")

    StreamWriter(parse(OPTIONS), broken, None).abort([None], 3)
    assert "the leftovers of batch 3 could not be aborted now" in caplog.text
    assert "no way to the database" in caplog.text


def test_columns() -> None:
    class Opened(Format):
        @staticmethod
        def open_sink(options: SinkOptions) -> Any:
            return None  # is asked for nothing

    wrong = StructType([StructField("value", LongType())])
    with pytest.raises(SinkOptionError, match="the column value is of type int64"):
        Opened(OPTIONS).writer(wrong, False)
