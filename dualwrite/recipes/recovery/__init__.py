"""Complete what crashed processes left open, for many transactional ids at once.

Open first: `plan.py`, a table of what is done, then `service.py`.
"""
