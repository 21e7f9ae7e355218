"""Random histories of a space, to its rest: to be replayed, because real servers have to confirm the model.

python -m tests.proof.replay_samples --tier 3 --count 40
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections import Counter
from typing import Final, NamedTuple

from tests.proof.replay import Replay, Replayed
from tests.proof.replay_network import Network, ReplayError
from tests.proof.replay_servers import Servers
from tests.proof.story import Setting, brief, kind_of
from tests.proof.world import Budget, World

_MOST_STEPS: Final = 400
_FAULTS_OF_100: Final = (3, 6, 12, 30)
"""How often a step is a fault, if one can happen: early in the history, or late."""

_REPLAYED: Final = ("crashes", "kills", "losses", "give_ups", "timeouts", "foreigners", "expiries", "terminations")
"""The faults that a replay can bring about, but for the operator's abort, which loses a decision on both sides."""

_WRITTEN: Final = (
    ((b"a1",), (b"b1",)),
    ((b"a1", b"a2"), (b"b1",)),
)


class Sample(NamedTuple):
    """A history, by its setting and the seed of every choice."""

    setting: Setting
    seed: int

    @property
    def name(self) -> str:
        faults = "-".join(f"{name}{n}" for name, n in self.setting.budget._asdict().items() if n) or "nothing fails"
        return f"tier{self.setting.tier}-{faults}-{self.seed}"

    def lines(self) -> list[str]:
        """Return the steps of the history, each in `brief`, until it is at rest."""
        choice, rules = random.Random(self.seed), self.setting.rules()
        faults_of_100 = choice.choice(_FAULTS_OF_100)
        world, told = rules.start(self.setting.budget), list[str]()
        try:
            while not rules.is_at_rest(world) and len(told) < _MOST_STEPS:
                sentence, world = _chosen(choice, world, list(rules.steps(world)), faults_of_100)
                told.append(brief(sentence))
        finally:
            rules.close()
        return told

    def replay(self, servers: Servers, network: Network) -> Replayed:
        """Replay it. Raises ReplayError where the real servers differ from the model."""
        with Replay(self.setting, servers, network) as stage:
            return stage.follow(self.lines(), self.seed)


def _chosen(
    choice: random.Random, world: World, options: list[tuple[str, World]], faults_of_100: int
) -> tuple[str, World]:
    """Return a step: of all kinds of steps alike, however many there are of a kind."""
    options = list({brief(option[0]): option for option in reversed(options)}.values())  # as a replay finds them
    faults = [option for option in options if option[1].budget != world.budget]
    others = [option for option in options if option[1].budget == world.budget]
    wanted = faults if faults and (not others or choice.randrange(100) < faults_of_100) else others
    fates = sorted({kind_of(option[0]).fate for option in wanted})
    fate = choice.choice(fates)
    return choice.choice([option for option in wanted if kind_of(option[0]).fate is fate])


def samples(tier: int, count: int, seed: int = 0, only: str | None = None) -> list[Sample]:
    """Return that many histories of a tier, of each kind of fault in turn, then with two kinds."""
    choice, names = random.Random(seed), [only] if only else list(_REPLAYED)
    found = []
    for number in range(count):
        spent = {names[number % len(names)]: 1 + (number // len(names)) % 2}
        if number >= 2 * len(names):
            spent.setdefault(choice.choice(_REPLAYED), 1)
        after_crash = (b"c1",) if spent.get("crashes", 0) < 2 else ()  # no two processes write the same
        setting = Setting(tier, Budget(**spent), choice.choice(_WRITTEN), after_crash, by_commit=True)
        found.append(Sample(setting, seed + number))
    return found


def main() -> None:
    """Replay samples, and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", type=int, default=3)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", help="only this kind")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    met: Counter[str] = Counter()
    differ = 0
    with Network() as network, Servers() as servers:
        for sample in samples(given.tier, given.count, given.seed, given.fault):
            began_s = time.monotonic()
            try:
                replayed = sample.replay(servers, network)
            except ReplayError as error:
                differ += 1
                print(f"{sample.name}: {error}\n", flush=True)
                continue
            met.update(kind_of(sentence).fate for sentence in replayed.steps)
            wrong = replayed.wrong_in_the_model, replayed.wrong_on_real_servers
            told = f"{len(replayed.steps)} steps, {time.monotonic() - began_s:.2f} s"
            print(f"{sample.name}: {told}{'' if wrong == (None, None) else f', WRONG: {wrong}'}", flush=True)
    print(f"{differ} of {given.count} differ; {dict(met)}")


if __name__ == "__main__":
    main()
