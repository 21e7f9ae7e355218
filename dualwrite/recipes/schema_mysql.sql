-- The row of a transactional id holds the prepared Kafka transaction of the last dual write committed with it.
CREATE TABLE IF NOT EXISTS kafka_transaction_state (
    transactional_id           VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    prepared_transaction_state VARCHAR(64)  NOT NULL DEFAULT '',
    updated_at                 DATETIME     NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB;
