"""The report of `dualwrite verify` to send in: the brokers and the numbers of a run, and no name, address or error."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import NamedTuple

from dualwrite.admin import BrokerFeatures, TwoPhaseCommit
from dualwrite.cli.verify_run import Plan, Verified
from dualwrite.errors import Api
from dualwrite.guarantee import Tier

_Range = tuple[int, int]


class Servers(NamedTuple):
    """The brokers by id, the tier that they have together, and the database."""

    features: Mapping[int, BrokerFeatures]
    two_phase_commit: Mapping[int, TwoPhaseCommit]
    tier: Tier
    database: str


def report_of(servers: Servers, plan: Plan, verified: Verified) -> str:
    """Return the report as Markdown."""
    return "\n".join([*_run(servers, plan, verified), *_brokers(servers)]) + "\n"


def _run(servers: Servers, plan: Plan, verified: Verified) -> Iterator[str]:
    report = verified.report
    size = f"{plan.workers} workers of {plan.writers} threads, {plan.partitions} partitions"
    rows = {
        "client": f"dualwrite {version('dualwrite')}, Python {platform.python_version()}, {platform.system()}",
        "database": servers.database,
        "brokers": str(len(servers.features)),
        "tier": f"{int(servers.tier)} ({servers.tier.name})",
        "run": f"{plan.seconds:g} s, {plan.rate:g} dual writes in a second, {size}",
        "workers stopped": _counted(verified.deeds),
        "dual writes": f"{report.committed} committed, {report.rolled_back} rolled back",
        "records": f"{report.records}, read {report.read} times",
        "anomalies": _counted({str(kind): number for kind, number in report.counts.items()}),
        "not recovered in time": str(len(verified.unsettled)),
    }
    yield from ("# dualwrite verify", "", "| | |", "|---|---|")
    yield from (f"| {name} | {value} |" for name, value in rows.items())


def _brokers(servers: Servers) -> Iterator[str]:
    """Yield a section for the brokers of each kind."""
    kinds = Counter(_kind(each, servers.two_phase_commit[id]) for id, each in servers.features.items())
    for lines, number in kinds.items():
        yield from ("", f"## {number} of {len(servers.features)} brokers", "", *lines)


def _kind(features: BrokerFeatures, two_phase_commit: TwoPhaseCommit) -> tuple[str, ...]:
    missing = [api.kafka_name for api in Api if api not in features.api_versions]
    return (
        f"* two-phase commit: {two_phase_commit}",
        f"* finalized features: {_ranges(features.finalized_features)}",
        f"* supported features: {_ranges(features.supported_features)}",
        f"* APIs that are missing: {', '.join(missing) or 'none'}",
        f"* API versions: {_ranges({_name(key): known for key, known in sorted(features.api_versions.items())})}",
    )


def _name(key: int) -> str:
    return Api(key).kafka_name if key in Api.__members__.values() else f"API {key}"


def _ranges(ranges: Mapping[str, _Range]) -> str:
    return ", ".join(f"{name} {least}-{most}" for name, (least, most) in ranges.items()) or "none"


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(numbers.items())) or "none"
