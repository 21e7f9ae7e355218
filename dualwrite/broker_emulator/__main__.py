"""`python -m dualwrite.broker_emulator`: see `process/command_line.py`."""

from __future__ import annotations

import sys

from dualwrite.broker_emulator import NEEDED


def _run() -> int:
    from dualwrite.broker_emulator.process.tuning import start_lean

    start_lean()

    from dualwrite.broker_emulator.process.command_line import main

    return main()


if __name__ == "__main__":
    try:
        status = _run()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dualwrite."):
            raise
        print(f"{NEEDED} ({error})", file=sys.stderr)
        status = 2
    raise SystemExit(status)
