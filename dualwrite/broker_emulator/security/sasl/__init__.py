"""The server's side of SASL's mechanisms, without a socket: tokens in, tokens out (RFC 4422)."""
