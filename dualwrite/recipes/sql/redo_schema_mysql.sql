-- Blocks that were stored because Kafka was away (Direct(when_kafka_is_away="store")), in the order of seq, from 1 on. The row
-- with seq 0 holds the number of the newest one, their size and the time of the oldest.
CREATE TABLE IF NOT EXISTS kafka_transaction_redo (
    transactional_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    seq              BIGINT       NOT NULL,
    stored_at_ms     BIGINT       NOT NULL DEFAULT 0,
    newest_seq       BIGINT       NOT NULL DEFAULT 0,
    stored_bytes     BIGINT       NOT NULL DEFAULT 0,
    records          LONGBLOB,
    PRIMARY KEY (transactional_id, seq)
) ENGINE = InnoDB;
