"""The `dualwrite` command line."""
