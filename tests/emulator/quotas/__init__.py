"""Client quotas: arithmetic, settings, and throttling."""
