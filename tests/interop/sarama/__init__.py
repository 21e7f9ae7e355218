"""Cases of sarama, which needs the Go compiler."""
