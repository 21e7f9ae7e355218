"""The ids of topics (KIP-516): a topic that was deleted and created again has another one under the same name.

Offsets of the old topic mean nothing in the new one. Without the id, a query whose next offset exists in the new topic
would continue there, and silently skip all earlier records of the new topic.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from dualwrite.errors import KafkaError
from spark_sink.errors import SourceReadError
from spark_sink.reading.kafka_settings import api_timeout_ms, connection_settings

SETTLED_AFTER_S: Final = 2.0
"""How long an unexpected id is looked up again: brokers learn of a new topic one after the other."""

_PAUSE_S: Final = 0.1


class TopicIdLookup(Protocol):
    """Looks up the ids that topics have now."""

    def ids(self, topics: Collection[str], expected: Mapping[str, str]) -> Mapping[str, str]:
        """Return the ids by name, without topics that do not exist or may not be seen.

        An id that differs from the expected one is looked up again for a while first: the broker that responds may
        learn of the topic later than others. Raises SourceReadError.
        """

    def close(self) -> None:
        """Close the connections. Never raises."""


class KafkaTopicIds:
    """A `TopicIdLookup` in a Kafka cluster. Kafka before 2.8 has no topic ids: nothing is found, or checked, there."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        from dualwrite.admin import TransactionAdmin  # loads kafka-python, which not every process needs

        self._timeout_ms = api_timeout_ms(settings)
        self._admin = TransactionAdmin(connection_settings(settings))

    def ids(self, topics: Collection[str], expected: Mapping[str, str]) -> Mapping[str, str]:
        """See `TopicIdLookup.ids`."""
        settled_s = time.monotonic() + SETTLED_AFTER_S
        while True:
            found = self._found(topics)
            if all(found.get(topic) == expected[topic] for topic in topics if topic in expected):
                return found
            if time.monotonic() > settled_s:
                return found
            time.sleep(_PAUSE_S)

    def _found(self, topics: Collection[str]) -> Mapping[str, str]:
        try:
            return self._admin.describe_topic_ids(topics, timeout_ms=self._timeout_ms).ids if topics else {}
        except KafkaError as error:
            raise SourceReadError(
                f"Kafka was queried for the ids of topics, and did not return them: {error}; nothing was read"
            ) from error

    def close(self) -> None:
        """Release the connections."""
        self._admin.close()


def id_unknown(topics: Iterable[str]) -> SourceReadError:
    """Return the error for topics that exist, although a broker does not know their ids, or is not allowed to say."""
    return SourceReadError(
        f"a broker did not return the id of {', '.join(sorted(topics))}: it does not know the topic yet, or this "
        "client may not describe it; no records were skipped. Try again"
    )


def another_topic(topic: str, expected: str, found: str | None) -> str:
    """Return a sentence about a topic whose id is not the one to which a query's offsets belong."""
    if found is None:
        return (
            f"the topic {topic} with the id {expected}, to which the offsets of the query belong, no longer exists, "
            "or this client may no longer describe it: its unread records are gone"
        )
    return (
        f"the topic {topic} was deleted and created again: the offsets of the query belong to the topic with the id "
        f"{expected}, and it has the id {found} now. The unread records of the old topic are gone; the new one has to "
        "be read from its beginning"
    )
