"""Control over HTTP, and its page."""
