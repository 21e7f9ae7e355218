"""What the broker can be asked: `table.py` says what and in which versions, one file per API key what it does."""
