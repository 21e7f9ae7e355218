"""Tests of the in-memory log."""
