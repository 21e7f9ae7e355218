"""Histories of dual writes, and what is wrong with them. Nothing here does I/O or imports the rest of the package."""
