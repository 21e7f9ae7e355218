"""Control over HTTP: what a test does to the emulator, for test suites in other processes and languages.

`shapes.py` reads and describes JSON by dataclasses, `endpoints/` has one file for each kind of thing with a table of
what can be asked, `openapi.py` describes those tables, `server.py` finds the endpoint for a request,
`http_connection.py` is HTTP on asyncio, `page/` is the page that people see.
"""

from __future__ import annotations

try:
    import h11  # noqa: F401  # only to see that it is there
except ModuleNotFoundError as error:
    if error.name != "h11":
        raise
    raise ModuleNotFoundError(
        "control over HTTP needs the packages of the extra: pip install 'dualwrite[emulator]' (no module named 'h11')",
        name="h11",
    ) from error
