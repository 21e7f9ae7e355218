"""`python -m dualwrite.broker_emulator`: see `process/command_line.py`."""

from __future__ import annotations

if __name__ == "__main__":
    from dualwrite.broker_emulator.process.tuning import start_lean

    start_lean()

    from dualwrite.broker_emulator.process.command_line import main

    raise SystemExit(main())
