"""Cases of rust-rdkafka, which needs Rust and a C compiler."""
