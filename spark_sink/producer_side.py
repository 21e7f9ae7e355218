"""Kafka as the protocol uses it, with `dualwrite`'s producers: the `SinkKafka` of a running sink."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from dualwrite.producer import Producer
from spark_sink.attempt.task_transaction import ProducerTransaction, begin
from spark_sink.driver.completion import Completion
from spark_sink.kafka_settings import resolved
from spark_sink.options import SinkOptions
from spark_sink.pause_points import Pause
from spark_sink.sink_kafka import Claim, Ended

COMPLETION_TIMEOUT_MS: Final = 20_000
"""How long taking ids over and completing transactions may take each, unless `kafka.max.block.ms` says otherwise.

Spark's trigger waits for it. What did not end in this time is tried again `commit.retries` times.
"""

_log = logging.getLogger(__name__)


class ProducerSide:
    """A `SinkKafka`. To be kept and used again: its connections are. A forked child makes its own.

    `pause` is called among completions, which are then made one after the other.
    """

    def __init__(self, options: SinkOptions, *, pause: Pause | None = None) -> None:
        self._options = options
        self._settings = resolved(options.kafka)
        self._completion = Completion(
            # whatever was prepared under a bound is completed under it: who prepares is asked whether that will do
            self._settings
            | {
                "transaction.two.phase.commit.enable": True,
                "accept.bounded.guarantee": True,
                "transaction.timeout.ms": options.txn_timeout_ms,
            },
            parallelism=options.commit_parallelism,
            step_timeout_ms=int(options.kafka.get("max.block.ms", COMPLETION_TIMEOUT_MS)),
            pause=pause,
        )
        self._keeper: tuple[int, Producer] | None = None
        """With the process that made it. It sends nothing; while it is open, the connections of all others stay."""

    def open(self, transactional_id: str, still_mine: Callable[[], bool]) -> ProducerTransaction:
        """See `SinkKafka.open`. Raises also SinkOptionError where the broker has less than `txn.mode` asks for, and
        AuthorizationError, AuthenticationError, KafkaTimeoutError.
        """
        self._keep_connections()
        return begin(self._options, self._settings, transactional_id, still_mine)

    def end(
        self, claims: Sequence[Claim], still_wanted: Callable[[Collection[str]], Collection[str]]
    ) -> Mapping[str, Ended]:
        """See `SinkKafka.end`."""
        if not claims:
            return {}
        self._keep_connections()
        return self._completion.end(claims, still_wanted)

    def close(self) -> None:
        """Let go of connections. Never raises."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper[0] == os.getpid():
            try:
                keeper[1].close(timeout_s=0)
            except Exception as error:
                _log.info("the connections were not closed properly: %s", error)

    def _keep_connections(self) -> None:
        if self._keeper is not None and self._keeper[0] == os.getpid():
            return
        self._keeper = os.getpid(), Producer(self._settings)
