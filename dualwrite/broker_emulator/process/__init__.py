"""The emulator as a process of its own: command line, settings files, notifications of its state.

Open first: `command_line.py`.
"""
