"""Complete the transactions of crashed processes; run it by cron every few minutes, on any number of machines.

    */5 * * * *  python -m examples.recovery_cron --prefix orders-

The environment variables DUALWRITE_BOOTSTRAP_SERVER and DUALWRITE_DATABASE_URL name Kafka and the database. Prints
nothing if all is well, so that cron sends no mail; exits with status 1 if an operator has to look. `dualwrite recover
--apply` does the same and prints a table.
"""

from __future__ import annotations

import argparse
import os
import sys

import sqlalchemy as sa

from dualwrite.recipes.recovery.service import Found, RecoveryService


def main() -> int:
    """Run one round and return the exit status."""
    parser = argparse.ArgumentParser(description="Complete what crashed processes left open.")
    parser.add_argument("--prefix", required=True, help="of the transactional ids to recover")
    parser.add_argument("--min-age-s", type=float, default=60, help="leave younger transactions to their owners")
    options = parser.parse_args()
    engine = sa.create_engine(os.environ["DUALWRITE_DATABASE_URL"])
    with RecoveryService(
        engine,
        bootstrap_servers=os.environ["DUALWRITE_BOOTSTRAP_SERVER"],
        prefix=options.prefix,
        min_age_ms=int(options.min_age_s * 1000),
    ) as service:
        report = service.recover()
    for found in report.found:
        if found.changed or found.is_left:
            print(line(found))
    for sentence in report.unseen:
        print(f"not seen: {sentence}")
    return 0 if report.is_clean else 1


def line(found: Found) -> str:
    """Describe the result for one id."""
    result = "done" if found.changed else found.error or "see docs/cli.md"
    return f"{found.transactional_id}: {found.action} of {found.pair} ({found.state}): {result}"


if __name__ == "__main__":
    sys.exit(main())
