"""The command: `python -m tests.fuzz --seconds 60 --seed 1`, or `--replay FILE` for a failure of an earlier run."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.campaign import Campaign, Limits
from tests.fuzz.cases import read_cases


def main() -> int:
    """Run a campaign or replay a file; the exit status is 1 after a failure."""
    options = _parser().parse_args()
    limits = Limits(options.max_stall_ms / 1000, options.max_memory_mib, options.cases_per_round)
    campaign = Campaign(options.seed, limits, options.failures)
    if options.replay is not None:
        wrong = campaign.replay(read_cases(options.replay))
        print("nothing was wrong" if wrong is None else wrong)
        return 0 if wrong is None else 1
    result = campaign.run(options.seconds)
    print(
        f"seed {options.seed}: {result.cases} connections, {result.frames} frames, {result.rounds} brokers; "
        f"longest stall {result.worst_stall_s * 1000:.0f} ms, most memory {result.most_memory_mib:.0f} MiB; "
        f"{len(result.failures)} failures"
    )
    return 1 if result.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to attack (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--failures", type=Path, default=Path("build/fuzz"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the cases of a file instead")
    parser.add_argument("--max-stall-ms", type=float, default=250, help="default: %(default)s")
    parser.add_argument("--max-memory-mib", type=float, default=200, help="default: %(default)s")
    parser.add_argument("--cases-per-round", type=int, default=20_000, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
