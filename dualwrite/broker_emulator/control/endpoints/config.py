"""Whose behaviour is imitated, and the brokers' settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from dualwrite.broker_emulator.config import BrokerConfig, Profile
from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint

_SECRET = ("password", "secret", "jaas")
"""Words in the names of settings whose values are nobody's business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigView:
    """The emulator's settings."""

    profile: Annotated[Profile, "Whose behaviour is imitated."]
    settings: Annotated[dict[str, Any], "Those of every broker that have an effect here, by Kafka's names."]


async def show(controlled: Controlled) -> ConfigView:
    config = controlled.cluster.config
    settings = {name.replace("_", "."): _shown(name, getattr(config, name)) for name in BrokerConfig.names()}
    return ConfigView(profile=config.profile, settings=settings)


def _shown(name: str, value: Any) -> Any:
    if any(word in name for word in _SECRET):
        return None
    return value if isinstance(value, str | int | float | None) else ",".join(map(str, value))


ENDPOINTS = (Endpoint("GET", "/v1/config", show, "The profile and the brokers' settings"),)
