"""Cases of kafka-go, which needs the Go compiler."""
