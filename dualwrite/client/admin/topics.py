"""Describe topics: this client's rights on them, and how their logs are cleaned."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dualwrite.client.admin.cluster_codec import describe_topic_settings
from dualwrite.client.admin.driver import AdminDriver, Located, failure
from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.messages import ANY_NODE
from dualwrite.errors import Api, AuthenticationError, KafkaTimeoutError


async def describe_topics(
    driver: AdminDriver, topics: Collection[str], deadline_s: float
) -> dict[str, TopicDescription]:
    """Describe topics by any broker that responds. Creates none. Raises `KafkaTimeoutError`, `AuthenticationError`.

    A missing right to describe the topic's settings is no error: the policy is unknown then.
    """
    names = list(dict.fromkeys(topics))
    seen = (await driver.metadata(names, deadline_s, with_rights=True)).topics
    readable = {name: seen[name].is_readable for name in names if name in seen and not seen[name].error_code}

    async def any_broker(some: Sequence[str]) -> Located[str]:
        return Located(dict.fromkeys(some, ANY_NODE), {}, {})

    settings = await driver.fulfil(
        readable, any_broker, lambda _, some: describe_topic_settings(some), deadline_s=deadline_s
    )
    for error in settings.failed.values():
        if isinstance(error, KafkaTimeoutError | AuthenticationError):
            raise error
    unseen = {name: seen[name].error_code for name in names if name in seen and name not in readable}
    return {
        name: TopicDescription(
            readable.get(name),
            settings.done[name].cleanup_policy if name in settings.done else None,
            failure(Api.METADATA, unseen[name], name) if name in unseen else settings.failed.get(name),
            settings.done[name].most_age_ms if name in settings.done else None,
            is_writable=seen[name].is_writable if name in readable else None,
        )
        for name in names
    }
