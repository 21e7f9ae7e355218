"""Histories of dual writes, and their anomalies. Nothing here does I/O or imports the rest of the package."""
