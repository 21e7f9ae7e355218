"""Who comes in, and what he may do: listeners, TLS, SASL, access control."""
