"""A Kafka broker and transaction coordinator in one process (KIP-98, KIP-664, KIP-890, KIP-939)."""

from __future__ import annotations

from dualwrite.broker_emulator.clock import SystemClock, VirtualClock
from dualwrite.broker_emulator.config import BrokerConfig, Profile
from dualwrite.broker_emulator.emulator import Emulator, HeldPoint, LogSnapshot
from dualwrite.broker_emulator.faults import (
    CloseAfter,
    CloseBefore,
    CrashAfter,
    CrashBefore,
    Delay,
    DropReply,
    DropRequest,
    Duplicate,
    Error,
    Fault,
    FaultHandle,
    Faults,
    Hold,
    HoldReply,
    PartitionError,
    Reorder,
)
from dualwrite.broker_emulator.pause_points import PausePoint

__all__ = [
    "BrokerConfig",
    "CloseAfter",
    "CloseBefore",
    "CrashAfter",
    "CrashBefore",
    "Delay",
    "DropReply",
    "DropRequest",
    "Duplicate",
    "Emulator",
    "Error",
    "Fault",
    "FaultHandle",
    "Faults",
    "HeldPoint",
    "Hold",
    "HoldReply",
    "LogSnapshot",
    "PartitionError",
    "PausePoint",
    "Profile",
    "Reorder",
    "SystemClock",
    "VirtualClock",
]
