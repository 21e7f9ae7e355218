"""`python -m dualwrite.testing.conformance DATABASE_URL [options of pytest]`."""

from __future__ import annotations

import sys

from dualwrite.testing import conformance


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(conformance.__doc__, file=sys.stderr)
        return 2
    try:
        import pytest
        import sqlalchemy  # noqa: F401  # the tests use it; without it, pytest would show a traceback
    except ModuleNotFoundError as error:
        print(
            f"the tests need the packages of extras: pip install 'dualwrite[pytest,sqlalchemy]' ({error})",
            file=sys.stderr,
        )
        return 2
    url, *options = arguments
    package = conformance.__name__
    return int(pytest.main(["-p", f"{package}.plugin", "--pyargs", package, f"--database-url={url}", *options]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
