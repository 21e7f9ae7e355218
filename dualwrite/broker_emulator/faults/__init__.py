"""Declarative faults: which requests are hit, how often, and the action on them instead of normal service.

Open `fault.py` first: it defines a fault, and reads the names in a request. `actions.py` has the actions of faults,
`registry.py` the faults in place; `service.py` carries an action out. `partition_errors.py` fails a part of a request,
`markers.py` applies faults to the markers between nodes. Only `markers.py` imports the tables of `api/`.
"""
# ruff: noqa: I001 - one import per module; importing each name as itself exports it

from __future__ import annotations

from dualwrite.broker_emulator.faults.actions import (
    Action as Action,
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
