"""The control port: HTTP endpoints by which test suites in other processes and languages drive the emulator.

Open `server.py` first: it routes a request to its endpoint. `endpoint.py` defines the table of endpoints; `endpoints/`
has one file per subject. `shapes.py` reads, writes and describes JSON by dataclasses; `openapi.py` describes the
endpoints. `http_server.py` and `http_connection.py` are HTTP on asyncio; `page/` is the HTML page. `schema_registry/`
uses the same HTTP server.

Imports of its neighbours: `cluster`, `faults`, `groups`, `log`, `messages`, `metrics`, `quotas`, `topics`,
`transactions`.
"""

from __future__ import annotations

try:
    import h11  # noqa: F401  # only to check that it is installed
except ModuleNotFoundError as error:
    if error.name != "h11":
        raise
    raise ModuleNotFoundError(
        "the control port needs the packages of the extra: pip install 'dualwrite[emulator]' (no module named 'h11')",
        name="h11",
    ) from error
