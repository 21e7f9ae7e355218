"""The search with fewer states has the same findings as the full one, and comes to the same ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest

from dualwrite.client.log.transaction_end import PartitionEnd, TransactionEnd
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.client.transactions.recovery import CoordinatorMemory
from tests.proof.explore import Explorer
from tests.proof.kafka_model import serve
from tests.proof.owner import CheckedKafka, CheckedTransaction
from tests.proof.reductions import Reduced, is_dead
from tests.proof.settling import Graph
from tests.proof.story import Setting
from tests.proof.world import Budget, Rules, World

pytestmark = pytest.mark.timeout(900)  # a large search, on a busy machine

_ONE_EACH: Final = ((b"a1",), (b"b1",))

SETTINGS: Final = (
    Setting(1, Budget(losses=1), _ONE_EACH),
    Setting(2, Budget(kills=1), _ONE_EACH, by_commit=True),
    Setting(3, Budget(losses=1), _ONE_EACH),
    Setting(3, Budget(crashes=1), _ONE_EACH),
    Setting(4, Budget(timeouts=1), _ONE_EACH),
)


def _name(setting: Setting) -> str:
    faults = "-".join(name for name, count in setting.budget._asdict().items() if count)
    return f"tier{setting.tier}-{faults}"


@pytest.fixture
def rules_of() -> Iterator[Callable[[Setting, type[Rules]], Rules]]:
    """Make rules that are closed in the end."""
    made: list[Rules] = []

    def make(setting: Setting, kind: type[Rules]) -> Rules:
        made.append(setting.rules(kind))
        return made[-1]

    yield make
    for rules in made:
        rules.close()


RulesOf = Callable[[Setting, type[Rules]], Rules]


def ends(rules: Rules, graph: Graph) -> set[Any]:
    """Return all observations at rest: requests that may still arrive have no effect."""

    def told(world: World) -> tuple[Any, ...]:
        return tuple(rules.programs[process.program].nodes[process.node].told for process in world.processes)

    worlds = (graph.worlds[number] for number in graph.at_rest)
    return {(world.kafka, world.row, world.table, world.budget, told(world)) for world in worlds}


@pytest.mark.parametrize("setting", SETTINGS, ids=_name)
def test_both_searches_reach_the_same_ends(setting: Setting, rules_of: RulesOf) -> None:
    full, reduced = rules_of(setting, Rules), rules_of(setting, Reduced)
    every, fewer = Graph(full, setting.budget), Graph(reduced, setting.budget)
    assert len(fewer.worlds) < len(every.worlds)
    assert ends(reduced, fewer) == ends(full, every)


@pytest.mark.parametrize("setting", SETTINGS, ids=_name)
def test_dead_states_stay_dead_and_change_nothing(setting: Setting, rules_of: RulesOf) -> None:
    rules = rules_of(setting, Rules)
    graph = Graph(rules, setting.budget)
    requests = {request for world in graph.worlds for request in world.late}
    assert requests or not setting.budget.losses
    for here, there in graph.steps():
        before, after = graph.worlds[here].kafka, graph.worlds[there].kafka
        for request in requests:
            if is_dead(before, request, rules.profile):
                assert serve(before, request, rules.profile)[0] == before
                assert is_dead(after, request, rules.profile)


@pytest.mark.parametrize("setting", SETTINGS, ids=_name)
def test_every_state_comes_to_rest_without_another_fault(setting: Setting, rules_of: RulesOf) -> None:
    graph = Graph(rules_of(setting, Rules), setting.budget)
    assert graph.at_rest
    assert not graph.unsettled()
    assert not graph.has_cycle()


def test_the_lean_search_visits_the_states_of_the_plain_one(rules_of: RulesOf) -> None:
    setting = SETTINGS[0]
    graph = Graph(rules_of(setting, Rules), setting.budget)
    found = Explorer(rules_of(setting, Rules), setting.budget).search()
    assert (found.states, found.at_rest, found.is_complete) == (len(graph.worlds), len(graph.at_rest), True)


def test_a_search_that_was_cut_off_says_so(rules_of: RulesOf) -> None:
    setting = SETTINGS[0]
    found = Explorer(rules_of(setting, Reduced), setting.budget).search(100)
    assert found.states >= 100
    assert not found.is_complete
    assert "NOT COMPLETE" in str(found)


async def _nothing(*_: object, **__: object) -> None:
    pass


def _every_end_is(end: PartitionEnd) -> Callable[..., Awaitable[TransactionEnd]]:
    async def end_of(self: CheckedKafka, manifest: Manifest, timeout_ms: int, *, is_over: bool) -> TransactionEnd:
        return TransactionEnd(dict.fromkeys(manifest.partitions, end))

    return end_of


PLANTED: Final[dict[str, tuple[Setting, type, str, object]]] = {
    "what is in doubt is not completed": (Setting(3, Budget(crashes=1), _ONE_EACH), CheckedKafka, "complete", _nothing),
    "the database is not committed": (Setting(1, Budget(losses=1), _ONE_EACH), CheckedTransaction, "commit", _nothing),
    "what was aborted counts as committed": (
        Setting(3, Budget(timeouts=1), _ONE_EACH),
        CheckedKafka,
        "end_of",
        _every_end_is(PartitionEnd.COMMITTED),
    ),
    "what was committed counts as aborted": (
        Setting(3, Budget(crashes=1), _ONE_EACH),
        CheckedKafka,
        "end_of",
        _every_end_is(PartitionEnd.ABORTED),
    ),
    "what the coordinator has forgotten counts as known": (
        Setting(4, Budget(timeouts=1), _ONE_EACH),
        CoordinatorMemory,
        "knows",
        lambda self, row: True,
    ),
}


@pytest.mark.parametrize("kind", [Rules, Reduced])
@pytest.mark.parametrize("planted", PLANTED)
def test_both_searches_find_a_planted_bug(
    planted: str, kind: type[Rules], rules_of: RulesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, owner, name, mistake = PLANTED[planted]
    monkeypatch.setattr(owner, name, mistake)
    found = Explorer(rules_of(setting, kind), setting.budget).search()
    assert found.wrong is not None
    assert found.story is not None
