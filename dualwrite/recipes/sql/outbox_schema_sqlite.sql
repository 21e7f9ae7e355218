-- The records of blocks that a pool with delivery=Outbox() has committed and not yet published, in the order of seq. The
-- process that publishes them deletes them in the same commit that decides their Kafka transaction, and notes their
-- numbers for a few minutes in a row with a negative seq, so that a commit that got no response can be told from one
-- that did not happen. Where a broker may abort what was decided, they stay until the next batch is decided, or the row
-- of the last one is settled; its row with seq 0 has their numbers (published) and the partitions of their records
-- (records), and names the transaction. Do not delete it: they would be taken for blocks that wait. It also says up to
-- which number blocks may have been noted in rows that were deleted (forgotten).
CREATE TABLE IF NOT EXISTS kafka_transaction_outbox (
    transactional_id           VARCHAR(255) NOT NULL,
    seq                        BIGINT       NOT NULL,
    stored_at_ms               BIGINT       NOT NULL,
    records                    BLOB,
    published                  TEXT,
    forgotten                  BIGINT,
    prepared_transaction_state VARCHAR(64),
    PRIMARY KEY (transactional_id, seq)
);
