-- Which process uses which slot of a pool of transactional ids. The id of a slot is its prefix, a dash, and its number.
-- A lease only saves work, so the table may be emptied at any time.
CREATE TABLE IF NOT EXISTS kafka_transaction_lease (
    prefix        VARCHAR(255) NOT NULL,
    slot          INTEGER      NOT NULL,
    owner         VARCHAR(64),
    expires_at_ms BIGINT       NOT NULL DEFAULT 0,
    PRIMARY KEY (prefix, slot)
);
