"""The statements on the state row, for databases other than PostgreSQL; parameters are written `:name`.

PostgreSQL's are in `postgres.py`: they also check the table, the lock and the transaction.
"""

from __future__ import annotations

from typing import Final

from dualwrite.recipes.sql.pinned_tables import STATE_TABLE

_OF_ID: Final = "WHERE transactional_id = :id"

SELECT: Final = f"SELECT prepared_transaction_state FROM {STATE_TABLE} {_OF_ID}"
SELECT_MANIFEST: Final = f"SELECT coalesce(manifest, '') FROM {STATE_TABLE} {_OF_ID}"
SELECT_ID: Final = f"SELECT transactional_id FROM {STATE_TABLE} {_OF_ID}"
INSERT: Final = f"INSERT INTO {STATE_TABLE} (transactional_id) VALUES (:id)"

TOUCH: Final = f"UPDATE {STATE_TABLE} SET updated_at = updated_at {_OF_ID}"
"""Changes nothing, and locks its row on every database."""

WRITE: Final = (
    f"UPDATE {STATE_TABLE} SET prepared_transaction_state = :new, manifest = :manifest, updated_at = CURRENT_TIMESTAMP"
    f" {_OF_ID} AND prepared_transaction_state = :previous"
)

CHANGE_WITNESS: Final = f"{INSERT} ON DUPLICATE KEY UPDATE updated_at = updated_at + INTERVAL 1 SECOND"
"""For MySQL: an UPDATE that leaves a row as it is would not reach the binary log."""
