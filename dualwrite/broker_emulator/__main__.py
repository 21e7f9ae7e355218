"""`python -m dualwrite.broker_emulator`: see `command_line`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Where hypothesis is installed, kio imports it to register test strategies for its types: half of a broker's start,
    # for what nobody asks for in its own process.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]

    from dualwrite.broker_emulator.command_line import main

    raise SystemExit(main())
