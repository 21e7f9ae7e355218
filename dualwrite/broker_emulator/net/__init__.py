"""Listeners and connections: frames in, frames out, TLS and logins.

Imports the registry of the APIs, `security` and the faults. Open first: `server.py`, the connection.
"""
