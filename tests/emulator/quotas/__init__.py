"""Client quotas: the arithmetic, what can be set, and what clients feel of it."""
