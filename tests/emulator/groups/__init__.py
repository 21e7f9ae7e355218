"""Tests of committed offsets, without sockets."""
