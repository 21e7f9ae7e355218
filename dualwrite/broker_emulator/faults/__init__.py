"""Declarative faults: which requests are hit, how often, and what happens to them instead of being served as usual.

Open `fault.py` first, which defines a fault and reads what a request names; `actions.py` has what a fault can do,
`registry.py` the faults that are in place, `service.py` carries an action out. `partition_errors.py` fails a part of a
request, `markers.py` applies faults to the markers between nodes. Only `markers.py` imports the tables of `api/`.
"""

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
