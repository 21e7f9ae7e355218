"""The transactional producer without its sockets: states, take-over, recovery, and which request is next.

Pure: no sockets, threads or clocks. Open first: `states.py`, then `manager.py`.
"""
