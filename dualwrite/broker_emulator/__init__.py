"""A Kafka broker and transaction coordinator in one process (KIP-98, KIP-664, KIP-890, KIP-939).

Public names are imported on first access (PEP 562), so that the command line can control what its process loads. Open
first: `emulator.py`, the emulator as tests use it; then `api/`, the handlers of all requests, and `transactions/`.
"""
# ruff: noqa: I001 - one import per module; importing each name as itself exports it

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dualwrite.broker_emulator.monkey_patches import assert_unpatched

NEEDED = "the emulator needs the packages of the extra: pip install 'dualwrite[emulator]'"

assert_unpatched()  # also in `Emulator.start`; some of what follows cannot even be imported

try:
    import kio  # noqa: F401  # only to check that it is installed

    if find_spec("crc32c") is None:  # not imported here: that is slow, and a broker's own process avoids it
        raise ModuleNotFoundError("No module named 'crc32c'", name="crc32c")
except ModuleNotFoundError as error:
    if error.name not in ("kio", "crc32c"):
        raise
    if sys.argv[:1] == ["-m"]:  # Python is looking for the module to run: a traceback would not help
        print(f"{NEEDED} ({error})", file=sys.stderr)
        raise SystemExit(2) from error
    raise ModuleNotFoundError(f"{NEEDED} ({error})", name=error.name) from error

if TYPE_CHECKING:
    from dualwrite.broker_emulator.clock import (
        SystemClock as SystemClock,
        VirtualClock as VirtualClock,
    )
    from dualwrite.broker_emulator.config import BrokerConfig as BrokerConfig
    from dualwrite.broker_emulator.emulator import Emulator as Emulator
    from dualwrite.broker_emulator.faults.actions import (
        CloseAfter as CloseAfter,
        CloseBefore as CloseBefore,
        CrashAfter as CrashAfter,
        CrashBefore as CrashBefore,
        Delay as Delay,
        DropReply as DropReply,
        DropRequest as DropRequest,
        Duplicate as Duplicate,
        Error as Error,
        Hold as Hold,
        HoldReply as HoldReply,
        PartitionError as PartitionError,
        Reorder as Reorder,
    )
    from dualwrite.broker_emulator.faults.fault import Fault as Fault
    from dualwrite.broker_emulator.faults.registry import FaultHandle as FaultHandle, Faults as Faults
    from dualwrite.broker_emulator.handles import (
        HeldPoint as HeldPoint,
        LogSnapshot as LogSnapshot,
    )
    from dualwrite.broker_emulator.pause_points import PausePoint as PausePoint
    from dualwrite.broker_emulator.profiles import Profile as Profile
    from dualwrite.broker_emulator.security.acl import (
        Acl as Acl,
        AclFilter as AclFilter,
        AclOperation as AclOperation,
        PatternType as PatternType,
        ResourceType as ResourceType,
    )
    from dualwrite.broker_emulator.security.listener import (
        ClientAuth as ClientAuth,
        Listener as Listener,
        Tls as Tls,
    )
    from dualwrite.broker_emulator.security.sasl.mechanism import (
        Sasl as Sasl,
        UnsecuredTokens as UnsecuredTokens,
    )

PUBLIC_NAMES = {
    "clock": ("SystemClock", "VirtualClock"),
    "config": ("BrokerConfig",),
    "profiles": ("Profile",),
    "emulator": ("Emulator",),
    "handles": ("HeldPoint", "LogSnapshot"),
    "faults.actions": (
        "CloseAfter",
        "CloseBefore",
        "CrashAfter",
        "CrashBefore",
        "Delay",
        "DropReply",
        "DropRequest",
        "Duplicate",
        "Error",
        "Hold",
        "HoldReply",
        "PartitionError",
        "Reorder",
    ),
    "faults.fault": ("Fault",),
    "faults.registry": ("FaultHandle", "Faults"),
    "pause_points": ("PausePoint",),
    "security.acl": ("Acl", "AclFilter", "AclOperation", "PatternType", "ResourceType"),
    "security.listener": ("ClientAuth", "Listener", "Tls"),
    "security.sasl.mechanism": ("Sasl", "UnsecuredTokens"),
}
"""The public names, by the module that defines them."""

__all__ = sorted(name for names in PUBLIC_NAMES.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in PUBLIC_NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
