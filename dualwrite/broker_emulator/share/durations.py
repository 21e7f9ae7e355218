"""Durations in the format of Java's: `PnDTnHnMn.nS`."""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


def parse_duration(text: str) -> timedelta:
    """Parse a duration. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as PT1H30M")
    return timedelta(**{unit: float(value) for unit, value in match.groupdict(default="0").items()})
