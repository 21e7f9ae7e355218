"""Settings of the whole cluster: the profile, the brokers' settings, features (KIP-584), client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from dualwrite.broker_emulator.cluster.features import NEWEST_LEVELS, finalized_level, supported_levels
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import as_conflict, bad_request, not_found
from dualwrite.broker_emulator.profiles import Profile
from dualwrite.broker_emulator.quotas.client_quotas import TYPES, Entity, encoded, entity
from dualwrite.broker_emulator.text import did_you_mean

_SECRET = ("password", "secret", "jaas")
"""Words in the names of settings whose values are secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigView:
    """The emulator's settings."""

    profile: Annotated[Profile, "The broker version whose behaviour is imitated."]
    settings: Annotated[dict[str, Any], "The settings of every broker that have an effect here, by Kafka's names."]


async def show_config(controlled: ControlledEmulator) -> ConfigView:
    config = controlled.cluster.config
    settings = {name.replace("_", "."): _shown(name, getattr(config, name)) for name in BrokerConfig.names()}
    return ConfigView(profile=config.profile, settings=settings)


def _shown(name: str, value: Any) -> Any:
    if any(word in name for word in _SECRET):
        return None
    return value if isinstance(value, str | int | float | None) else ",".join(map(str, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureView:
    """A feature; the supported levels are null in a profile that does not have it."""

    feature: str
    finalized_level: int
    supported_min_level: int | None
    supported_max_level: int | None
    epoch: Annotated[int, "Increases with every update of the features."]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureList:
    """All features."""

    features: tuple[FeatureView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturePath:
    """A feature by its name."""

    feature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLevel:
    """The level to finalize."""

    level: int


def _feature_view(controlled: ControlledEmulator, feature: str) -> FeatureView:
    cluster = controlled.cluster
    levels = supported_levels(feature, cluster.config)
    return FeatureView(
        feature=feature,
        finalized_level=finalized_level(feature, cluster.config),
        supported_min_level=None if levels is None else levels[0],
        supported_max_level=None if levels is None else levels[-1],
        epoch=cluster.finalized_features_epoch,
    )


async def list_features(controlled: ControlledEmulator) -> FeatureList:
    return FeatureList(features=tuple(_feature_view(controlled, feature) for feature in NEWEST_LEVELS))


async def finalize(controlled: ControlledEmulator, path: FeaturePath, body: NewLevel) -> FeatureView:
    if path.feature not in NEWEST_LEVELS:
        raise not_found(
            f"there is no feature {path.feature!r}{did_you_mean(path.feature, NEWEST_LEVELS)}", NEWEST_LEVELS
        )
    with as_conflict():
        cluster = controlled.cluster
        async with cluster.changes:
            await cluster.changes.make(cluster.finalize_features({path.feature: body.level}))
    return _feature_view(controlled, path.feature)


_Names = Annotated[
    dict[str, str | None],
    f"By type ({', '.join(TYPES)}) a name, or null for the type's default. User and client-id may be combined.",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """The quotas of an entity."""

    entity: _Names
    quotas: Annotated[dict[str, float], "By Kafka's names, such as producer_byte_rate."]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaList:
    """All entities that have a quota."""

    quotas: tuple[QuotaView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """New quotas of an entity; quotas that are not named stay as they are."""

    entity: _Names
    quotas: Annotated[dict[str, float | None], "By Kafka's names; null removes a quota."]


def _quota_view(named: Entity, values: Mapping[str, float]) -> QuotaView:
    return QuotaView(entity=dict(sorted(named)), quotas=dict(values))


def _quota_views(controlled: ControlledEmulator) -> QuotaList:
    by_name = sorted(controlled.cluster.quotas.all(), key=lambda each: encoded(each[0]))
    return QuotaList(quotas=tuple(_quota_view(named, values) for named, values in by_name))


async def list_quotas(controlled: ControlledEmulator) -> QuotaList:
    return _quota_views(controlled)


async def alter_quotas(controlled: ControlledEmulator, body: QuotaChange) -> QuotaView:
    named = entity(body.entity.items())
    try:
        controlled.operations.set_quota(named, body.quotas)
    except ValueError as error:
        raise bad_request(str(error)) from None
    return _quota_view(named, dict(controlled.cluster.quotas.all()).get(named, {}))


async def remove_quotas(controlled: ControlledEmulator) -> QuotaList:
    removed = _quota_views(controlled)
    for named, values in list(controlled.cluster.quotas.all()):
        controlled.operations.set_quota(named, dict.fromkeys(values))
    return removed


ENDPOINTS = (
    Endpoint("GET", "/v1/config", show_config, "The profile and the brokers' settings"),
    Endpoint("GET", "/v1/features", list_features, "The features of the cluster"),
    Endpoint(
        "PUT",
        "/v1/features/{feature}",
        finalize,
        "Finalize a level, up or down; clients see it when they reconnect",
        (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
    Endpoint("GET", "/v1/quotas", list_quotas, "All client quotas"),
    Endpoint("PUT", "/v1/quotas", alter_quotas, "Set or remove quotas of users, client ids or addresses"),
    Endpoint("DELETE", "/v1/quotas", remove_quotas, "Remove all quotas, and return them"),
)
