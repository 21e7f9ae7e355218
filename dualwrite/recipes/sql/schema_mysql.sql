-- The row of a transactional id holds the prepared Kafka transaction of the last dual write committed under that id, and
-- in its manifest where Kafka stored the records.
CREATE TABLE IF NOT EXISTS kafka_transaction_state (
    transactional_id           VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    prepared_transaction_state VARCHAR(64)  NOT NULL DEFAULT '',
    updated_at                 DATETIME     NOT NULL DEFAULT CURRENT_TIMESTAMP,
    manifest                   TEXT
) ENGINE = InnoDB;
-- The random suffix that this database adds to its transactional ids in Kafka. The only row is created at first use.
CREATE TABLE IF NOT EXISTS kafka_transaction_database (
    only_row         INTEGER     NOT NULL PRIMARY KEY CHECK (only_row = 1),
    suffix           VARCHAR(16) NOT NULL,
    made_in_server   VARCHAR(64),
    made_in_database VARCHAR(64),
    made_at          DATETIME    NOT NULL DEFAULT CURRENT_TIMESTAMP
) ENGINE = InnoDB;
