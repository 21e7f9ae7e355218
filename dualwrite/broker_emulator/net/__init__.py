"""Listeners and connections: frames in, frames out, TLS and logins.

Open first: `server.py`.
"""
