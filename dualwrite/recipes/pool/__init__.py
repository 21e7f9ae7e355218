"""Many dual writes at once, each under a transactional id that its process leases.

Open first: `coordinator.py`; `slots.py` says who has which id.
"""
