-- Blocks that were stored because Kafka was away (Direct(when_kafka_is_away="store")), in the order of seq, from 1 on. The row
-- with seq 0 holds the number of the newest one, their size and the time of the oldest; and with an outbox a copy of
-- the records of its last transaction, which prepared_transaction_state names.
CREATE TABLE IF NOT EXISTS kafka_transaction_redo (
    transactional_id           VARCHAR(255) NOT NULL,
    seq                        BIGINT       NOT NULL,
    prepared_transaction_state VARCHAR(64),
    stored_at_ms               BIGINT       NOT NULL DEFAULT 0,
    newest_seq                 BIGINT       NOT NULL DEFAULT 0,
    stored_bytes               BIGINT       NOT NULL DEFAULT 0,
    records                    BYTEA,
    PRIMARY KEY (transactional_id, seq)
);
