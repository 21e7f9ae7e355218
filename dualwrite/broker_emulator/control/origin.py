"""Whose requests are answered: those of programs, and of pages that this very port has served.

A page of somebody else's that is open in a browser on this machine can send requests here, and by a name of its own
that it lets point here (DNS rebinding) even read the answers. Browsers say in Origin and Host where a request is from.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

_NEVER_PUBLIC = ("localhost", "local", "internal", "test")
"""Top-level names that nobody can register."""
_OWN_SITE = ("same-origin", "none")


def why_not(method: str, headers: Mapping[str, str], own_name: str) -> str | None:
    """Why a request is not answered; None where it is. `own_name`: the name that the port was told to listen at."""
    host = headers.get("host")
    if host is None:
        return "a request needs one Host header"
    name = _name_of(host)
    if name is None or not _is_private(name, own_name):
        return f"the Host {host!r} is a name that anybody could let point here: ask by an address, or by a short name"
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):  # https: behind a proxy
        return f"pages of {origin} may not ask here"
    site = headers.get("sec-fetch-site")
    if method not in ("GET", "HEAD") and site is not None and site not in _OWN_SITE:
        return f"pages of another site may not change anything here (Sec-Fetch-Site: {site})"
    return None


def _name_of(host: str) -> str | None:
    """The name or address without the port; None where it cannot be read."""
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
