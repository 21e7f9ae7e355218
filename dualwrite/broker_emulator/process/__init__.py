"""The emulator as a process of its own: its command line, and what such a process tunes before it starts.

Imports the emulator; nothing imports this but the two commands. Open first: `command_line.py`.
"""
