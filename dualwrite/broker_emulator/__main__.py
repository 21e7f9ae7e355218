"""`python -m dualwrite.broker_emulator`: see `command_line`."""

from __future__ import annotations

if __name__ == "__main__":
    from dualwrite.broker_emulator.own_process import start_lean

    start_lean()

    from dualwrite.broker_emulator.command_line import main

    raise SystemExit(main())
