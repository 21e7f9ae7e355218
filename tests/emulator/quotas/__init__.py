"""Client quotas: the arithmetic, what can be set, and how clients are throttled."""
