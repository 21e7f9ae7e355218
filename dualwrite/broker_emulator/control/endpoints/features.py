"""Features of the cluster (KIP-584): read, and finalized at another level."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.cluster.features import GROUP_VERSION, NEWEST_LEVELS, finalized_level, supported_levels
from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.errors import as_conflict, not_found
from dualwrite.broker_emulator.suggestions import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureView:
    """A feature; the levels are null in a profile that does not have it."""

    feature: str
    finalized_level: int
    supported_min_level: int | None
    supported_max_level: int | None
    epoch: Annotated[int, "Grows with every update of the features."]


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
    """The level that is to be finalized."""

    level: int


def _view(controlled: Controlled, feature: str) -> FeatureView:
    cluster = controlled.cluster
    levels = supported_levels(feature, cluster.config)
    return FeatureView(
        feature=feature,
        finalized_level=finalized_level(feature, cluster.config),
        supported_min_level=None if levels is None else levels[0],
        supported_max_level=None if levels is None else levels[-1],
        epoch=cluster.finalized_features_epoch,
    )


async def list_all(controlled: Controlled) -> FeatureList:
    return FeatureList(features=tuple(_view(controlled, feature) for feature in NEWEST_LEVELS))


async def finalize(controlled: Controlled, path: FeaturePath, body: NewLevel) -> FeatureView:
    if path.feature not in NEWEST_LEVELS:
        raise not_found(
            f"there is no feature {path.feature!r}{did_you_mean(path.feature, NEWEST_LEVELS)}", NEWEST_LEVELS
        )
    with as_conflict():
        if path.feature == GROUP_VERSION:
            controlled.cluster.finalize_features(group_version=body.level)
        else:
            controlled.cluster.finalize_features(body.level)
    return _view(controlled, path.feature)


ENDPOINTS = (
    Endpoint("GET", "/v1/features", list_all, "The features of the cluster"),
    Endpoint(
        "PUT",
        "/v1/features/{feature}",
        finalize,
        "Finalize a level, up or down; clients learn of it when they connect anew",
        (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
)
