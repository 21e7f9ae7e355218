"""Run simulations by their seeds, and print what went wrong.

python -m tests.proof.simulate --seed 4711 --trace
python -m tests.proof.simulate --seeds 1-1000 --jobs 2
"""

from __future__ import annotations

import argparse
import gc
import time

from tests.proof.simulation.planted import MISTAKES, plant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--planted", choices=MISTAKES)
    given = parser.parse_args()
    if given.planted: plant(given.planted)
    from tests.proof.simulation.run import simulate
    seeds = range(given.seed or 0, (given.seed or 0) + 1)
    if given.seeds:
        first, last = map(int, given.seeds.split("-"))
        seeds = range(first, last + 1)
    gc.collect(); gc.freeze()
    began = time.process_time()
    n = 0; steps = 0; writes = decided = 0
    for seed in seeds:
        result = simulate(seed)
        n += 1; steps += result.steps; writes += result.writes; decided += result.decided
        if given.trace:
            print("\n".join(result.lines))
        if result.problems:
            print(f"seed {seed}: {result.problems[:3]}")
    print(f"{n} seeds, {(time.process_time()-began)/n*1000:.1f} ms each, {steps/n:.0f} steps, {writes/n:.1f} writes, {decided/n:.1f} decided")
    if given.seed: print(result.digest)

if __name__ == "__main__":
    main()
