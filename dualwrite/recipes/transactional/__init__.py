"""The decorator `@writer.transactional`: a function whose call is a dual write.

Open first: `calls.py`, which both faces share.
"""
