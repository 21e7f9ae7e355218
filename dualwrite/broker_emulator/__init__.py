"""A Kafka broker and transaction coordinator in one process (KIP-98, KIP-664, KIP-890, KIP-939)."""
