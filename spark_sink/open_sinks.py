"""The sinks that one of Spark's worker processes has open.

Spark reuses a worker from batch to batch, so sinks and their connections are kept.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_sink.options import SinkOptions

if TYPE_CHECKING:
    from spark_sink.driver.protocol import Sink

OpenSink = Callable[[SinkOptions], "Sink"]
"""A function that opens a sink. It is pickled with the writer, so it must be a function of a module."""

_LIMIT: Final = 4
"""Number of sinks that a worker keeps open when queries take turns in it; above it, the least recently used closes."""

_sinks: OrderedDict[tuple[int, OpenSink, bytes], Sink] = OrderedDict()


def sink_of(options: SinkOptions, open_sink: OpenSink) -> Sink:
    """Return this process's sink with these options, opened if needed, for its only thread that runs tasks.

    A forked child opens its own, because processes cannot share a socket.
    """
    # These belong to a query; they do not change how the servers are reached.
    options = replace(options, checkpoint_location=None, query_name=None, job_id=None, job_version=None)
    key = (os.getpid(), open_sink, pickle.dumps(options))
    sink = _sinks.pop(key) if key in _sinks else open_sink(options)
    _sinks[key] = sink
    of_this_process = [each for each in _sinks if each[0] == os.getpid()]
    for surplus in of_this_process[:-_LIMIT]:
        _sinks.pop(surplus).close()
    return sink
