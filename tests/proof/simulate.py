"""Run simulations by their seeds, and print their errors.

python -m tests.proof.simulate --seed 4711 --trace python -m tests.proof.simulate --seeds 1-100000 --jobs 2
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, get_args

from tests.proof.simulation.planted import MISTAKES, Kind, plant

if TYPE_CHECKING:
    from tests.proof.simulation.run import Result

_SEEDS_PER_COLLECTION: Final = 50


def results(seeds: Iterable[int], kind: Kind = "writers") -> Iterator[Result]:
    """Run seeds one after the other; collect garbage now and then only, which takes as long as several seeds."""
    simulate = _simulation(kind)
    was_collecting = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        for count, seed in enumerate(seeds, 1):
            yield simulate(seed)
            if count % _SEEDS_PER_COLLECTION == 0:
                gc.collect()
    finally:
        gc.unfreeze()
        if was_collecting:
            gc.enable()


def _simulation(kind: Kind) -> Callable[[int], Result]:
    """Return the function that runs a seed; it is not imported before a mistake is planted."""
    match kind:
        case "spark":
            from tests.proof.simulation.spark_run import simulate_spark as simulate
        case "hanging":
            from tests.proof.simulation.hanging_run import simulate_hanging as simulate
        case "ways":
            from tests.proof.simulation.ways_run import simulate_ways as simulate
        case "writers":
            from tests.proof.simulation.run import simulate
    return simulate


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed")
    which.add_argument("--seeds", help="run all seeds from A to B, as A-B")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes share the seeds")
    parser.add_argument("--every", type=int, default=1, help="run each n-th seed only")
    parser.add_argument("--kind", choices=get_args(Kind), help="what is simulated (default: writers)")
    parser.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--trace", action="store_true", help="print the history as numbered lines")
    parser.add_argument("--planted", choices=MISTAKES, help="plant a mistake first")
    return parser.parse_args()


def _share(given: argparse.Namespace, first: int, last: int) -> int:
    """Let other processes run the seeds; return the exit code."""
    command = [sys.executable, "-m", "tests.proof.simulate"]
    if given.planted:
        command += ["--planted", given.planted]
    if given.kind:
        command += ["--kind", given.kind]
    running = [
        subprocess.Popen([*command, "--seeds", f"{first + job}-{last}", "--every", str(given.jobs)])
        for job in range(given.jobs)
    ]
    return max([process.wait() for process in running])


def main() -> int:
    """Run with the given arguments. Return 1 if a seed failed."""
    given = _parsed()
    first, last = (given.seed, given.seed) if given.seeds is None else map(int, given.seeds.split("-"))
    if given.jobs > 1:
        return _share(given, first, last)
    if given.planted:
        plant(given.planted)
    kind = given.kind or (MISTAKES[given.planted].kind if given.planted else "writers")
    began_s = time.process_time()
    count = steps = writes = failed = lost = 0
    for result in results(range(first, last + 1, given.every), kind):
        count, steps, writes = count + 1, steps + result.steps, writes + result.writes
        if result.told_of_loss:
            lost += 1
            print(f"seed {result.seed}: recovery has reported a documented loss of consumed offsets", flush=True)
        if given.trace:
            print("\n".join(result.lines))
        if result.problems:
            failed += 1
            print(f"seed {result.seed}: {'; '.join(result.problems[:3])}", flush=True)
            if given.first:
                break
    spent_ms = (time.process_time() - began_s) / max(count, 1) * 1000
    print(f"{count} seeds, {failed} failed, {lost} with a documented loss;", end=" ")
    print(f"{writes} dual writes, {steps} steps, {spent_ms:.1f} ms of CPU per seed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
