"""Partitions that become more, move, and change their leader."""
