"""What makes a commit of PostgreSQL durable, as SQL; parameters are written `:name`.

Two things decide that. `synchronous_commit` says whether COMMIT waits for the disk, and for the standbys that
`synchronous_standby_names` lists; anybody may lower it, for a role, a database, a session or one transaction. And the
wait for a standby can be given up after the commit was carried out, so that it shows, and is gone after a failover.
"""

from __future__ import annotations

from typing import Final

_RAISE: Final = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'remote_apply'"
    " THEN 'remote_apply' ELSE 'on' END, {is_local})"
)
RAISE: Final = _RAISE.format(is_local="true")
"""Let the COMMIT of this transaction wait for disk and standbys; one that waits for more goes on doing so."""

RAISE_FOR_SESSION: Final = _RAISE.format(is_local="false")
"""The same for all that the session commits."""

WITNESS: Final = (
    f"SELECT prepared_transaction_state, {RAISE}, CAST(pg_logical_emit_message(true, 'dualwrite', '') AS text)"
    " FROM kafka_transaction_state WHERE transactional_id = :id"
)
"""Read the row without its lock, and write something to the log that belongs to this transaction.

The log is one line: a commit that is in it is behind all that its transaction has seen, so whoever has the one has the
others. The message is for nobody. Any role may write one, no lock is needed for it, and it leaves nothing behind.
"""

GIVEN_UP_IN: Final = "SyncRepWaitForLSN"
"""The server's function that warns of a wait that was given up; the sentence is translated, and its code is shared."""
