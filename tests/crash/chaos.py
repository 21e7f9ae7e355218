"""All ways side by side, while processes, servers and networks are killed and frozen; afterwards both sides must agree.

    python -m tests.crash.chaos --seconds 600 --absences 5              # the emulator, tier 1
    python -m tests.crash.chaos --seconds 600 --absences 5 --tier 4     # the emulator as Apache Kafka 3.9
    python -m tests.crash.chaos --seconds 600 --absences 5 --tier 3 --real

On one database and one broker, processes write by `Direct()`, `Direct(when_kafka_is_away="store")` and `Outbox()`, with
every library; rivals take one transactional id from each other, and a recovery service works beside them. Many blocks
lock a row of their way, and publish with its key. A seeded director sends SIGKILL to processes, Postgres and the
broker, and starts them again; cuts connections; and stops processes, the ways that their requests take to the broker,
the broker and the database in their tracks, for longer than the database lets a transaction idle, than a lease lasts,
and on tiers 3 and 4 than `transaction.timeout.ms`. Many stop at a pause point, or right after.

Meanwhile Kafka is away for a minute, several times, and soon once more, while blocks that waited are published: traps
are set for the moment of its return. `--operator` adds a process that ends transactions of others by hand, with and
without a trace. `--real` runs an Apache Kafka of that tier instead of the emulator.

Then comes calm, in which everything must come right without help: `chaos_verdict.py`. Exit status 1 where it does not;
the journals and logs of the processes are kept then.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dualwrite.guarantee import Tier
from dualwrite.testing.postgres import PostgresServer
from tests.crash.chaos_brokers import broker_of
from tests.crash.chaos_director import PARTITIONS, TOPIC, Chaos
from tests.crash.chaos_plan import Plan
from tests.crash.chaos_servers import KillableKafka, KillablePostgres, Lane
from tests.crash.chaos_tally import Tally

_LANES: Final = 2


class ChaosError(AssertionError):
    """A failure, and the directory of the processes' journals."""


def run_chaos(plan: Plan) -> Tally:
    """One run; raises ChaosError after a failure."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualwrite-chaos-")))
        postgres = KillablePostgres(stack.enter_context(PostgresServer.start()))
        stack.callback(postgres.stop)
        postgres.allow_connections(20 + 4 * len(plan.kinds) * plan.writers)
        lanes = tuple(Lane(number) for number in range(_LANES))
        for lane in lanes:
            stack.callback(lane.close)
        broker = broker_of(plan.tier, directory, TOPIC, PARTITIONS, real=plan.real, lanes=lanes)
        stack.callback(broker.stop)
        try:
            tally = Chaos(plan, directory, postgres, broker, lanes).run()
        except BaseException as error:
            error.add_note(f"kept: {_keep(directory)}")
            raise
        if tally.problems:
            failure = ChaosError("\n".join([*tally.lines(), *tally.problems]))
            kept = _keep(directory)
            if isinstance(broker, KillableKafka):
                broker.keep(kept / "kafka")
            failure.add_note(f"kept: {kept}")
            raise failure
        if plan.keep:
            print(f"kept: {_keep(directory)}")
        return tally


def _keep(directory: Path) -> Path:
    kept = Path(tempfile.mkdtemp(prefix="dualwrite-chaos-kept-"))
    shutil.copytree(directory, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("emulator"))
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    plan = _plan_of(arguments)
    print(f"seed {plan.seed}", flush=True)
    try:
        tally = run_chaos(plan)
    except AssertionError as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        print(f"seed {plan.seed}: {error}\n{notes}", file=sys.stderr)
        return 1
    print(*tally.lines(), sep="\n")
    if (plan.is_bounded or plan.operator) and not tally.repairs:
        print("nothing was repaired, so that nothing is proven: run it for longer", file=sys.stderr)
        return 1
    return 0


def _plan_of(arguments: Sequence[str] | None) -> Plan:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600, help="of chaos (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the director (default: a new one)")
    parser.add_argument("--tier", type=int, choices=[1, 2, 3, 4], default=1, help="of the broker (default: 1)")
    parser.add_argument("--real", action="store_true", help="an Apache Kafka of tier 2, 3 or 4")
    parser.add_argument("--absences", type=int, default=1, help="how often Kafka is away (default: %(default)s)")
    parser.add_argument("--away-s", type=float, default=60.0, help="for how long (default: %(default)s)")
    parser.add_argument("--operator", action="store_true", help="transactions are aborted by hand, too")
    parser.add_argument("--writers", type=int, default=3, help="of each process of a pool (default: %(default)s)")
    parser.add_argument("--transaction-timeout-ms", type=int, default=2_000, help="on tiers 3 and 4 (default: 2000)")
    parser.add_argument("--keep", action="store_true", help="what was noted and logged, even where all is well")
    options = vars(parser.parse_args(arguments))
    if options["real"] and options["tier"] == 1:
        parser.error("no Apache Kafka is of tier 1")
    if options["seed"] is None:
        options["seed"] = random.SystemRandom().randrange(2**31)
    return Plan(**{**options, "tier": Tier(options["tier"])})


if __name__ == "__main__":
    raise SystemExit(main())
