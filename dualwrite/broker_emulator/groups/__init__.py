"""Committed and pending consumer offsets."""
