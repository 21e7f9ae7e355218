"""One file per API key; each registers itself with the versions it serves."""
