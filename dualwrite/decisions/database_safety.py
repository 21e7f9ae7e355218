"""Check whether a database, as it is configured, can keep the promises of a dual write; tables and pure functions.

Checked once per engine or psycopg writer, at first use. A configuration that breaks a promise in normal operation, or
when only the database's process crashes, is refused unless it was accepted by name. One that breaks a promise only when
a machine loses power is warned of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dualwrite.errors import ConfigError, UnsafeDatabaseError

_log = logging.getLogger(__name__)

ACCEPT_OPTION: Final = "dualwrite_accept"
"""The execution option of an Engine that names accepted findings: `create_engine(url, execution_options={...})`."""

Answers = Mapping[str, str]
"""Settings of the database and of the connection, by name in lower case; unknown ones are missing."""

POSTGRES_SETTINGS_QUERY: Final = (
    "SELECT version(), current_setting('fsync', true), current_setting('full_page_writes', true)"
)
POSTGRES_NAMES: Final = ("version", "fsync", "full_page_writes")
MYSQL_SETTINGS_QUERY: Final = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'log_bin',"
    " 'sync_binlog', 'wsrep_on', 'wsrep_provider', 'group_replication_group_name',"
    " 'group_replication_single_primary_mode', 'tidb_txn_mode')"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that the database cannot keep. `name` is the name by which a refused one is accepted."""

    name: str
    found: str
    why: str
    is_refused: bool


_NOT_EVERYWHERE: Final = (
    "its row locks do not exclude writers on another node, so two owners of an id can decide at the same time; send "
    "all dual writes to one node, also after a failover, and accept that by name"
)
_NO_PROOF: Final = "it cannot prove that the deciding transaction is the one that locked the row; use PostgreSQL"
_BY_CRASH: Final = "a crash of the database may lose a confirmed commit whose records stay in Kafka: set it to 1"
_BY_POWER: Final = "a power failure may lose a confirmed commit whose records stay in Kafka: set it to"


def _refused(name: str, found: str, why: str) -> Finding:
    return Finding(name, found, why, is_refused=True)


def _warned(name: str, found: str, why: str) -> Finding:
    return Finding(name, found, why, is_refused=False)


def of_postgres(answers: Answers) -> list[Finding]:
    """Return the findings for PostgreSQL; the answer `host` is taken from the URL, without a connection."""
    version = answers.get("version", "").lower()
    host = answers.get("host", "")
    found = []
    if ".dsql." in host and host.endswith(".on.aws"):
        found.append(
            _refused("aurora-dsql", "Aurora DSQL", "its transactions take no row locks; use Aurora PostgreSQL")
        )
    if "cockroachdb" in version:
        found.append(_refused("cockroachdb", "CockroachDB", _NO_PROOF))
    if "-yb-" in version:
        found.append(_refused("yugabytedb", "YugabyteDB", _NO_PROOF))
    for name in ("fsync", "full_page_writes"):
        if answers.get(name) == "off":
            found.append(_warned(name, "off", f"{_BY_POWER} on"))
    return found


def of_mysql(answers: Answers) -> list[Finding]:
    found = []
    if _is_on(answers, "wsrep_on") and answers.get("wsrep_provider", "none").lower() not in ("", "none"):
        found.append(_refused("galera", "a Galera cluster", _NOT_EVERYWHERE))
    if answers.get("group_replication_group_name") and not _is_on(answers, "group_replication_single_primary_mode"):
        found.append(_refused("group-replication", "Group Replication with several primaries", _NOT_EVERYWHERE))
    if "tidb" in answers.get("version", "").lower() and answers.get("tidb_txn_mode", "").lower() == "optimistic":
        found.append(
            _refused("tidb-optimistic", "TiDB, optimistic", "it takes no row locks: set tidb_txn_mode=pessimistic")
        )
    flush = answers.get("innodb_flush_log_at_trx_commit", "1")
    if flush == "0":
        found.append(_refused("innodb_flush_log_at_trx_commit", flush, _BY_CRASH))
    elif flush != "1":
        found.append(_warned("innodb_flush_log_at_trx_commit", flush, f"{_BY_POWER} 1"))
    if _is_on(answers, "log_bin") and answers.get("sync_binlog", "1") != "1":
        found.append(_warned("sync_binlog", answers["sync_binlog"], f"{_BY_POWER} 1"))
    return found


def of_sqlite(answers: Answers) -> list[Finding]:
    journal = answers.get("journal_mode", "").lower()
    if answers.get("attached") and "wal" in (journal, answers.get("attached_journal_mode")):
        why = "SQLite commits each file by itself in WAL mode: use one file, or journal_mode=delete in all of them"
        return [_refused("attached", f"{answers['attached']} beside the main file", why)]
    if answers.get("file") and journal in ("off", "memory"):
        return [_warned("journal_mode", journal, f"{_BY_POWER} delete or wal")]
    return []


def _is_on(answers: Answers, name: str) -> bool:
    return answers.get(name, "").lower() in ("on", "1")


OF_DIALECT: Final[Mapping[str, Callable[[Answers], list[Finding]]]] = {
    "postgresql": of_postgres,
    "mysql": of_mysql,
    "mariadb": of_mysql,
    "sqlite": of_sqlite,
}

NAMES: Final = frozenset(
    {
        *("aurora-dsql", "cockroachdb", "yugabytedb", "galera", "group-replication", "tidb-optimistic"),
        *("innodb_flush_log_at_trx_commit", "sync_binlog", "fsync", "full_page_writes", "journal_mode", "attached"),
    }
)
"""All findings that can be accepted; accepting a warning silences it."""


def checked_names(accepted: Any) -> Collection[str]:
    """Return the accepted names. Raises ConfigError if they are not a collection of names of findings."""
    if isinstance(accepted, str) or not set(accepted) <= NAMES:
        raise ConfigError(f"{ACCEPT_OPTION} takes a collection of {', '.join(sorted(NAMES))}, not {accepted!r}")
    return set(accepted)


def execution_option(name: str) -> str:
    """Return the execution option of an Engine that accepts a finding."""
    return f"the Engine's execution_options={{{ACCEPT_OPTION!r}: [{name!r}]}}"


def answer_for(
    findings: Iterable[Finding],
    accepted: Collection[str] = (),
    accepted_by: Callable[[str], str] = execution_option,
) -> None:
    """Log the warnings, and raise UnsafeDatabaseError for the first refused finding that was not accepted.

    `accepted_by` returns the setting that accepts a name, for the error.
    """
    for finding in findings:
        if finding.name in accepted:
            continue
        if finding.is_refused:
            raise UnsafeDatabaseError(
                f"this database cannot keep the promises of a dual write ({finding.name}: {finding.found}): "
                f"{finding.why}; nothing was written. To accept it all the same, set {accepted_by(finding.name)}"
            )
        _log.warning("the database's %s is %s: %s", finding.name, finding.found, finding.why)
