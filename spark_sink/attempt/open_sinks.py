"""The open sinks of one of Spark's worker processes: it is reused from batch to batch, and so are its connections."""

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
"""How a sink is opened; pickled with the writer, so a function of a module."""

_LIMIT: Final = 4
"""Queries whose tasks take turns in one worker; the sink that was longest not used is closed beyond that."""

_sinks: OrderedDict[tuple[int, OpenSink, bytes], Sink] = OrderedDict()


def sink_of(options: SinkOptions, open_sink: OpenSink) -> Sink:
    """The sink of this process with these options, in its only thread that runs tasks.

    A forked child opens its own: sockets cannot be shared.
    """
    options = replace(options, checkpoint_location=None, job_id=None)  # of a query, not of the way to the servers
    key = (os.getpid(), open_sink, pickle.dumps(options))
    sink = _sinks.pop(key) if key in _sinks else open_sink(options)
    _sinks[key] = sink
    of_this_process = [each for each in _sinks if each[0] == os.getpid()]
    for surplus in of_this_process[:-_LIMIT]:
        _sinks.pop(surplus).close()
    return sink
