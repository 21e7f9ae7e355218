"""Exactly-once PySpark sink (not built yet)."""
