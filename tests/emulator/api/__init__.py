"""Tests of the emulator's APIs over the wire. Open first: `raw_client.py`, then any test."""
