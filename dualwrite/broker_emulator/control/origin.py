"""Refuse requests from foreign web pages: only programs, and pages served by this port, may use it.

Any page open in a browser on this machine can send requests here, and, with a host name that it makes point here (DNS
rebinding), even read the responses. Browsers state the origin of a request in the headers Origin and Host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

_NEVER_PUBLIC = ("localhost", "local", "internal", "test")
"""Top-level names that cannot be registered publicly."""
_OWN_SITE = ("same-origin", "none")


def refusal_reason(method: str, headers: Mapping[str, str], own_name: str) -> str | None:
    """Return why a request is refused, or None. `own_name` is the host that the port was configured to listen on."""
    host = headers.get("host")
    if host is None:
        return "a request needs exactly one Host header"
    name = _name_of(host)
    if name is None or not _is_private(name, own_name):
        return f"the Host {host!r} is a name that any site could make point here: use an address or a short name"
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):  # https: behind a proxy
        return f"pages from {origin} may not use the control port"
    site = headers.get("sec-fetch-site")
    if method not in ("GET", "HEAD") and site is not None and site not in _OWN_SITE:
        return f"pages from another site may not change anything here (Sec-Fetch-Site: {site})"
    return None


def _name_of(host: str) -> str | None:
    """Return the name or address without the port, or None if the header is malformed."""
    if host.startswith("["):
        address, bracket, port = host[1:].partition("]")
        return address if bracket and (not port or port[0] == ":") else None
    name, _, port = host.partition(":")
    return name.lower().removesuffix(".") if name and (not port or port.isdecimal()) else None


def _is_private(name: str, own_name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name == own_name.lower() or name.rpartition(".")[2] in _NEVER_PUBLIC
    return True
