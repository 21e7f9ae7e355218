"""What the log says of a connection that is dropped because it cannot be rolled back or closed: one line."""

from __future__ import annotations

import logging

from dualwrite.recipes.core.state_row import owner_of


def first_line(error: BaseException) -> str:
    """What an error says, without what it quotes."""
    cause = getattr(error, "orig", None) or error  # SQLAlchemy's wraps what the driver said
    return str(cause).strip().partition("\n")[0]


def warn_of_drop(log: logging.Logger, transactional_id: str | None, what: str, error: BaseException) -> None:
    """`what` failed with `error`, so that the connection is dropped. Nothing is wrong then; DEBUG has the rest."""
    log.warning(
        "%s: %s failed (%s); dropping its connection, and the database drops what was not committed",
        owner_of(transactional_id),
        what,
        first_line(error) or type(error).__name__,
    )
    log.debug("The error after which a connection was dropped:", exc_info=error)
