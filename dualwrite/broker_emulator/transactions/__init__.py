"""The transaction coordinator: pure decisions, the log they are written to, and the service around both."""
