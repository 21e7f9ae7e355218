"""Access control, SASL and TLS of the emulator (not built yet)."""
