"""The command `dualwrite`, also as `python -m dualwrite`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from dualwrite.cli.root import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich", "javaproperties", "sqlalchemy"):
            raise
        print("dualwrite: the command needs the packages of its extra: pip install 'dualwrite[cli]'", file=sys.stderr)
        if sys.argv[1:2] == ["broker"]:
            print("dualwrite: the broker alone is python -m dualwrite.broker_emulator", file=sys.stderr)
        raise SystemExit(2) from None
    cli.main()


if __name__ == "__main__":
    main()
