"""Declarative faults: which requests, how often, and what happens to them instead of the ordinary answer."""

from __future__ import annotations

from dualwrite.broker_emulator.faults.actions import (
    Action,
    CloseAfter,
    CloseBefore,
    CrashAfter,
    CrashBefore,
    Delay,
    DropReply,
    DropRequest,
    Duplicate,
    Error,
    Hold,
    HoldReply,
    PartitionError,
    Reorder,
)
from dualwrite.broker_emulator.faults.fault import Fault
from dualwrite.broker_emulator.faults.registry import FaultHandle, Faults

__all__ = [
    "Action",
    "CloseAfter",
    "CloseBefore",
    "CrashAfter",
    "CrashBefore",
    "Delay",
    "DropReply",
    "DropRequest",
    "Duplicate",
    "Error",
    "Fault",
    "FaultHandle",
    "Faults",
    "Hold",
    "HoldReply",
    "PartitionError",
    "Reorder",
]
