"""How the producer works inside. Nothing here is public."""
