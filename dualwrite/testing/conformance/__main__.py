"""`python -m dualwrite.testing.conformance DATABASE_URL [options of pytest]`."""

from __future__ import annotations

import sys

import pytest

from dualwrite.testing import conformance


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(conformance.__doc__, file=sys.stderr)
        return 2
    url, *options = arguments
    package = conformance.__name__
    return int(pytest.main(["-p", f"{package}.plugin", "--pyargs", package, f"--database-url={url}", *options]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
