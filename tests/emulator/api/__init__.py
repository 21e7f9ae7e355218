"""Tests of the emulator's APIs at the wire."""
