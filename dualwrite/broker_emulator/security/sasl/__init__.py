"""The server side of the SASL mechanisms, without a socket: tokens in, tokens out (RFC 4422).

Open `mechanism.py` first.
"""
