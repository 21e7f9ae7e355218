"""The control port, and its page."""
