"""What quotas can be set for whom, checked in the order of Kafka's controller."""

from __future__ import annotations

import ipaddress
import math
import socket
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache

from dualwrite.broker_emulator.quotas.entity import CLIENT_ID, IP, TYPES, USER, Entity


class Quota(StrEnum):
    """What can be limited."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes of Produce requests in a second."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes of Fetch answers in a second."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Time that requests take, in percent of one thread's."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions created or deleted in a second."""
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    """Connections made in a second."""


_LONG = (2**63 - 1, "a LONG")
_INT = (2**31 - 1, "an INT")
_USER_AND_CLIENT: Mapping[str, tuple[int, str] | None] = {
    Quota.PRODUCER_BYTE_RATE: _LONG,
    Quota.CONSUMER_BYTE_RATE: _LONG,
    Quota.REQUEST_PERCENTAGE: None,
    Quota.CONTROLLER_MUTATION_RATE: None,
}
_IP: Mapping[str, tuple[int, str] | None] = {Quota.CONNECTION_CREATION_RATE: _INT}
"""The largest whole number that a quota takes, with its type as messages have it; None where it takes fractions."""

_WHOLE = 1e-6


def why_not(entity: Entity, changes: Mapping[str, float | None]) -> str | None:
    """Why these quotas (None: no longer) cannot be set for `entity`; None when they can."""
    return _why_not_entity(entity) or _why_not_values(_IP if IP in dict(entity) else _USER_AND_CLIENT, changes)


def _why_not_entity(entity: Entity) -> str | None:
    names = dict(entity)
    if not names:
        return "Invalid empty client quota entity"
    for kind, name in names.items():
        if kind not in TYPES:
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    if IP in names:
        if USER in names or CLIENT_ID in names:
            return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        if names[IP] is not None and address_of(names[IP]) is None:
            return f"{names[IP]} is not a valid IP or resolvable host."
    return None


def _why_not_values(known: Mapping[str, tuple[int, str] | None], changes: Mapping[str, float | None]) -> str | None:
    for key, value in changes.items():
        if value is None:
            continue
        if key not in known:
            return f"Invalid configuration key {key}"
        if not value > 0:
            return f"Quota {key} must be greater than 0"
        whole = known[key]
        if whole is not None and value > whole[0]:
            return f"Proposed value for {key} is too large for {whole[1]}."
        if whole is not None and math.fmod(value, 1.0) > _WHOLE:
            return f"{key} cannot be a fractional value."
    return None


@lru_cache(maxsize=1024)
def address_of(host: str | None) -> str | None:
    """The address that a host stands for, as connections show it; None where it has none."""
    if host is None:
        return None
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError):
        return None
