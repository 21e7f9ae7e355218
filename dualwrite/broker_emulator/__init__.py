"""A Kafka broker and transaction coordinator in one process (KIP-98, KIP-664, KIP-890, KIP-939)."""

from __future__ import annotations

import sys

try:
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
except ModuleNotFoundError as error:
    if error.name not in ("kio", "crc32c"):
        raise
    _SENTENCE = "the emulator needs the packages of the extra: pip install 'dualwrite[emulator]'"
    if sys.argv[:1] == ["-m"]:  # while Python looks for the module that is to be run: a traceback would help nobody
        print(_SENTENCE, file=sys.stderr)
        raise SystemExit(2) from error
    raise ModuleNotFoundError(f"{_SENTENCE} ({error})", name=error.name) from error

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
