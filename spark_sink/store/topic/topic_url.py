"""The URL of a commit store in a topic: `kafka:///topic` in the sink's own cluster, `kafka://servers/topic` in another.

Knows nothing of Kafka, and is loaded with the options.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from spark_sink.errors import SinkOptionError

_SCHEME: Final = "kafka:"
_URL: Final = re.compile(r"kafka://(?P<servers>[^/@?#\s]*)/(?P<topic>[A-Za-z0-9._-]{1,249})")


class TopicUrl(NamedTuple):
    """Where a store is."""

    servers: str | None
    """The brokers to connect to first; None: those of the sink."""
    topic: str


def is_topic(url: str | None) -> bool:
    """Return whether this has the form of the URL of a store in a topic."""
    return url is not None and url.startswith(_SCHEME)


def topic_url(name: str, url: str) -> TopicUrl:
    """Return the parts of a URL for which `is_topic` is true. Raises SinkOptionError, which never quotes the URL."""
    found = _URL.fullmatch(url)
    if found is None or found["topic"] in (".", ".."):
        raise SinkOptionError(
            f"{name} must be kafka:///topic, for a topic in the sink's own cluster, or "
            "kafka://host:port,host:port/topic for one in another cluster, without a password: the options kafka.* say "
            "how to connect"
        )
    return TopicUrl(found["servers"] or None, found["topic"])
