"""Real servers confirm the model: random histories of it are replayed on a real emulator and Postgres.

Each step is compared: the row, the application's table, the log, the coordinator, and the callers' results.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.testing.postgres import PostgresServer
from tests.proof.replay import replay
from tests.proof.replay_network import Network
from tests.proof.replay_samples import Sample, samples
from tests.proof.replay_servers import Servers
from tests.proof.story import Fate, Setting, Story, narrate, read_story, wanted
from tests.proof.world import Budget

_FEW_FAULTS = (
    (1, "losses"),
    (1, "foreigners"),
    (2, "give_ups"),
    (2, "expiries"),
    (3, "timeouts"),
    (3, "kills"),
    (4, "crashes"),
    (4, "timeouts"),
)
FEW = [sample for seed, (tier, fault) in enumerate(_FEW_FAULTS) for sample in samples(tier, 1, seed, only=fault)]
_OF_OUTAGES = {Fate.AWAY, Fate.OUTAGE, Fate.BACK, Fate.DELETED, Fate.MOMENT}
_OF_DATABASES_AND_POOLS = {Fate.FAILED_OVER, Fate.RESTORED, Fate.LAPSED, Fate.MAINTAINED}
_NOT_REPLAYED = {Fate.MOVED, Fate.UPGRADED} | _OF_OUTAGES | _OF_DATABASES_AND_POOLS
STORIES = sorted(Path(__file__).with_name("stories").glob("*.jsonl"))
MANY = [sample for tier in (1, 2, 3, 4) for sample in samples(tier, 45, seed=100 * tier)]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture(scope="module")
def servers(postgres_server: PostgresServer) -> Iterator[Servers]:
    with Servers(postgres_server) as servers:
        yield servers


@pytest.mark.parametrize("sample", FEW, ids=lambda sample: sample.name)
def test_model_and_servers_agree(sample: Sample, servers: Servers, network: Network) -> None:
    assert_agreed(sample, servers, network)


@pytest.mark.parametrize("sample", MANY, ids=lambda sample: sample.name)
def test_model_and_servers_agree_in_many_histories(sample: Sample, servers: Servers, network: Network) -> None:
    assert_agreed(sample, servers, network)


def assert_agreed(sample: Sample, servers: Servers, network: Network) -> None:
    replayed = sample.replay(servers, network)
    assert replayed.wrong_in_the_model is None
    assert replayed.wrong_on_real_servers is None


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_of_a_mended_mistake_is_right_now(path: Path, servers: Servers, network: Network) -> None:
    replayed = replay(read_story(path.read_text().splitlines()), servers, network)
    assert replayed.wrong_in_the_model is None
    assert replayed.wrong_on_real_servers is None


def test_samples_have_every_kind_of_step_but_rare_ones() -> None:
    met = {wanted(line).fate for sample in MANY for line in sample.lines()}
    rare = {Fate.NO_MARKER, Fate.COMMIT_LATE, Fate.COMMIT_DROPPED, Fate.LOST, Fate.KILLED_UNHEARD}
    assert met >= {*Fate} - rare - _NOT_REPLAYED


# ---- the story ------------------------------------------------------------------------------------------------------


def a_story() -> Story:
    setting = Setting(3, Budget(losses=1), ((b"a1",), (b"b1",)), (b"c1",))
    rules = setting.rules()
    try:
        return narrate(rules, rules.start(setting.budget), [0] * 30, "nothing", setting)
    finally:
        rules.close()


def test_a_story_is_kept_as_json_lines(tmp_path: Path) -> None:
    story = a_story()
    story.save(tmp_path / "story.jsonl")
    assert read_story((tmp_path / "story.jsonl").read_text().splitlines()) == story
