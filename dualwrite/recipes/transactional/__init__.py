"""The decorator `@writer.transactional`: a function whose call is a dual write, for threads and for asyncio.

May import `core` and `capabilities.py`; knows no database library. Open first: `transactional.py`, which is all of it.
"""
