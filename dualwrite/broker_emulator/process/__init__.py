"""The emulator as a process of its own: its command line, and the tuning of such a process before it starts.

Only the two commands import this. Open first: `command_line.py`.

Imports of its neighbours: `log`, `security`, `topics`.
"""
