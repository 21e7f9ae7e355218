"""Listeners and connections: frames in, frames out, TLS and logins.

Open first: `server.py`, the connection; `client_transport.py` has its limits and its end.

Imports of its neighbours: `api`, `cluster`, `faults`, `log`, `messages`, `quotas`, `security`, `topics`,
`transactions`.
"""
