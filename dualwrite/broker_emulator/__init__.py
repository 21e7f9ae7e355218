"""A Kafka broker and transaction coordinator in one process (KIP-98, KIP-664, KIP-890, KIP-939)."""

from __future__ import annotations

from dualwrite.broker_emulator.clock import SystemClock, VirtualClock
from dualwrite.broker_emulator.config import BrokerConfig, Profile
from dualwrite.broker_emulator.emulator import Emulator, HeldPoint, LogSnapshot
from dualwrite.broker_emulator.faults import (
    CloseAfter,
    CloseBefore,
    Delay,
    DropReply,
    DropRequest,
    Error,
    Fault,
    FaultHandle,
    Faults,
)
from dualwrite.broker_emulator.pause_points import PausePoint

__all__ = [
    "BrokerConfig",
    "CloseAfter",
    "CloseBefore",
    "Delay",
    "DropReply",
    "DropRequest",
    "Emulator",
    "Error",
    "Fault",
    "FaultHandle",
    "Faults",
    "HeldPoint",
    "LogSnapshot",
    "PausePoint",
    "Profile",
    "SystemClock",
    "VirtualClock",
]
