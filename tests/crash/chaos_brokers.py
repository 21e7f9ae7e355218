"""The brokers of each tier, for runs of chaos: the emulator, or a real Apache Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dualwrite.guarantee import Tier
from tests.crash.chaos_servers import KillableEmulator, KillableKafka, Lane
from tests.support.real_kafkas import OLDER, RELEASED, TWO_PHASE_COMMIT, Kind

EMULATED_SETTINGS: Final[Mapping[Tier, Mapping[str, str]]] = {
    Tier.KEEP_PREPARED: {"profile": "kip-939"},
    Tier.STORED_PAIR: {
        "profile": "kafka-4.3",
        "unstable.api.versions.enable": "true",
        "transaction.two.phase.commit.enable": "true",
    },
    Tier.BOUNDED: {"profile": "kafka-4.3"},
    Tier.BOUNDED_V1: {"profile": "kafka-3.9"},
}
_SCAN: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
REAL_KINDS: Final[Mapping[Tier, Kind]] = {
    Tier.STORED_PAIR: TWO_PHASE_COMMIT,
    Tier.BOUNDED: RELEASED,
    Tier.BOUNDED_V1: OLDER,
}


def broker_of(
    tier: Tier, directory: Path, topic: str, partitions: int, *, real: bool, lanes: tuple[Lane, ...] = ()
) -> KillableEmulator | KillableKafka:
    """Start a broker with a topic: a real one, of tier 2, 3 or 4, or an emulator whose data is below the directory."""
    if real:
        return KillableKafka(REAL_KINDS[tier], topic, partitions, lanes=lanes)
    settings = {**EMULATED_SETTINGS[tier], **(_SCAN if tier in (Tier.BOUNDED, Tier.BOUNDED_V1) else {})}
    return KillableEmulator(directory / "emulator", topic, partitions, settings=settings, lanes=lanes)
