"""Sequences of requests, made from a seed; brokers' own choices have symbols.

A producer is the letter of its transactional id, or "I" for one without; its epoch is given relative to the last one
that it was told. Topics, groups and transactional ids have letters too, and get new names for each sequence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

Versions = Mapping[str, tuple[int, int]]
"""The oldest and the newest version of each API that both brokers serve."""

TOPICS: Final = {"t": 2, "u": 1}
"""The topics of a sequence, with their partitions; "missing" is none."""
GROUPS: Final = ("g", "h")
IDS: Final = ("A", "B")
_LENGTHS: Final = (3, 6, 10, 16, 24)


@dataclass(frozen=True, slots=True)
class Step:
    """One request."""

    api: str
    version: int
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.api} v{self.version} " + " ".join(f"{name}={value}" for name, value in self.values.items())

    @classmethod
    def parse(cls, text: str) -> Step:
        """Return the step that was printed so."""
        api, version, *fields = re.split(r" +(?=\w+=)| v(?=\d+ )", text.strip())
        values = (each.split("=", 1) for each in fields)
        return cls(api, int(version), {name: _literal(value) for name, value in values})


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def make_sequence(seed: str, versions: Versions) -> list[Step]:
    """Return the sequence of this seed."""
    random = Random(seed)
    kinds = [(api, weight, make) for api, (weight, make) in _KINDS.items() if api in versions]
    favoured = random.sample(kinds, 6)
    kinds += favoured * 3
    chosen = random.choices(kinds, [weight for _, weight, _ in kinds], k=random.choice(_LENGTHS))
    steps = [_start(random, versions)] if random.random() < 0.8 else []
    return steps + [Step(api, _version(random, *versions[api]), make(random)) for api, _, make in chosen]


def _start(random: Random, versions: Versions) -> Step:
    version = _version(random, *versions["init_producer_id"])
    return Step("init_producer_id", version, {"id": "A", "timeout_ms": 60_000, "expects": "nothing", "epoch": 0})


def _version(random: Random, oldest: int, newest: int) -> int:
    """Return the newest one mostly: old versions have been compared for longest."""
    return newest if random.random() < 0.5 else random.randint(oldest, newest)


def _of(random: Random, *weighted: tuple[Any, int]) -> Any:
    return random.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]


def _id(random: Random) -> str | None:
    return str(_of(random, ("A", 12), ("B", 3), ("never", 1), ("", 1)))


def _pair(random: Random, owner: str | None) -> dict[str, Any]:
    """Return whose pair it is, and how far its epoch is from the current one."""
    own = owner if owner in IDS else "A"
    producer = _of(random, (own, 24), ("A", 1), ("B", 1), ("I", 1), ("unknown", 1), ("none", 1))
    return {"producer": producer, "epoch": _of(random, (0, 20), (-1, 3), (1, 3), (7, 1), ("none", 1))}


def _partition(random: Random) -> tuple[str, int]:
    chosen: tuple[str, int] = _of(
        random, (("t", 0), 12), (("t", 1), 4), (("u", 0), 4), (("t", 2), 1), (("missing", 0), 1), (("", 0), 1)
    )
    return chosen


def _init(random: Random) -> dict[str, Any]:
    return {
        "id": _of(random, ("A", 12), ("B", 4), (None, 3), ("", 1)),
        "timeout_ms": _of(random, (60_000, 20), (0, 1), (-1, 1), (900_001, 1)),
        "expects": _of(random, ("nothing", 10), ("A", 5), ("B", 1), ("unknown", 1), ("no epoch", 1)),
        "epoch": _of(random, (0, 6), (-1, 3), (1, 2), (-2, 1)),
    }


def _add_partitions(random: Random) -> dict[str, Any]:
    owner = _id(random)
    values = {"id": owner, **_pair(random, owner), "partitions": [_partition(random)], "verify_only": False}
    if random.random() < 0.3:
        values["partitions"] = sorted({_partition(random) for _ in range(3)})
    if random.random() < 0.3:
        values["verify_only"] = True
    return values


def _add_offsets(random: Random) -> dict[str, Any]:
    owner = _id(random)
    return {"id": owner, **_pair(random, owner), "group": _group(random)}


def _group(random: Random) -> str:
    return str(_of(random, ("g", 12), ("h", 3), ("", 1)))


def _named_group(random: Random) -> str:
    """Return a group of this sequence only: all sequences share the group without a name."""
    return _group(random) or "g"


def _end(random: Random) -> dict[str, Any]:
    owner = _id(random)
    return {"id": owner, **_pair(random, owner), "commit": random.random() < 0.6}


def _produce(random: Random) -> dict[str, Any]:
    owner = _of(random, ("A", 12), ("B", 3), (None, 8), ("never", 1), ("", 1))
    transactional = (owner is not None) != (random.random() < 0.06)
    if owner is None and random.random() < 0.5:
        pair: dict[str, Any] = {"producer": "none", "epoch": "none"}
    else:
        pair = _pair(random, owner if owner is not None else "I")
        if owner is None and random.random() < 0.7:
            pair["producer"] = "I"
    return {
        "id": owner,
        **pair,
        "partition": _partition(random),
        "sequence": _of(random, ("next", 16), (0, 4), ("again", 4), ("gap", 2), ("none", 1), (2**31 - 1, 1)),
        "count": _of(random, (1, 5), (2, 1), (3, 1)),
        "transactional": transactional,
        "acks": _of(random, (-1, 48), (1, 4), (2, 1), (-2, 1)),
        "damage": _of(random, ("", 40), ("crc", 1), ("trailing", 1), ("empty", 1), ("control", 1)),
    }


def _txn_offset_commit(random: Random) -> dict[str, Any]:
    owner = _id(random)
    offsets = {"group": _group(random), "partition": _partition(random), "offset": random.randrange(100)}
    return {"id": owner, **_pair(random, owner), **offsets, **_claims(random)}


def _claims(random: Random) -> dict[str, Any]:
    """Return a member's fields."""
    member = _of(random, ("", 12), ("own", 8), ("nobody", 1))
    generation = _of(random, (0, 10), (1, 1), (-1, 1)) if member else _of(random, ("none", 10), (0, 1))
    return {"member": member, "generation": generation, "instance": _of(random, (None, 14), ("i", 1))}


def _offset_commit(random: Random) -> dict[str, Any]:
    offset = _of(random, (5, 8), (0, 1), (-1, 1), (2**40, 1))
    metadata = _of(random, ("", 6), ("m", 2), (None, 1), ("long", 1))
    committed = {"group": _named_group(random), "partition": _partition(random), "offset": offset, "metadata": metadata}
    return {**committed, **_claims(random)}


def _offset_fetch(random: Random) -> dict[str, Any]:
    partitions = _of(random, ([("t", 0), ("u", 0)], 6), (None, 2), ([("missing", 0)], 1), ([], 1))
    return {"group": _named_group(random), "partitions": partitions, "stable": random.random() < 0.5}


def _fetch(random: Random) -> dict[str, Any]:
    return {
        "partition": _partition(random),
        "offset": _of(random, (0, 8), (1, 3), (3, 2), (-1, 1), (100, 1)),
        "isolation": _of(random, (0, 5), (1, 5), (7, 1)),
        "leader_epoch": _of(random, (-1, 8), (0, 2), (1, 1)),
    }


def _list_offsets(random: Random) -> dict[str, Any]:
    timestamp = _of(random, (-1, 6), (-2, 4), (-3, 2), (-4, 1), (-5, 1), (0, 2), (2**62, 1))
    isolation = _of(random, (0, 5), (1, 5), (7, 1))
    epoch = _of(random, (-1, 8), (0, 1), (1, 1))
    return {"partition": _partition(random), "timestamp": timestamp, "isolation": isolation, "leader_epoch": epoch}


def _delete_records(random: Random) -> dict[str, Any]:
    return {"partition": _partition(random), "offset": _of(random, (-1, 4), (0, 1), (1, 4), (2, 2), (99, 1), (-2, 1))}


def _markers(random: Random) -> dict[str, Any]:
    epoch = _of(random, (0, 6), (1, 1), (-1, 1))
    values = {"partition": _partition(random), "commit": random.random() < 0.5, "coordinator_epoch": epoch}
    return {**_pair(random, "A"), **values}


def _join(random: Random) -> dict[str, Any]:
    return {
        "group": _group(random),
        "member": _of(random, ("", 6), ("own", 5), ("nobody", 1)),
        "instance": _of(random, (None, 8), ("i", 3)),
        "session_ms": _of(random, (30_000, 12), (1, 1), (-1, 1)),
        "type": _of(random, ("consumer", 12), ("", 1), ("other", 1)),
        "protocols": _of(random, (["range"], 8), (["range", "sticky"], 3), (["sticky"], 1), ([], 1)),
        "metadata": _of(random, ("topics", 20), ("cut", 1), ("no version", 1)),
    }


def _member(random: Random) -> dict[str, Any]:
    member = _of(random, ("own", 12), ("", 1), ("nobody", 1))
    generation = _of(random, (0, 10), (1, 1), (-1, 1))
    return {"group": _group(random), "member": member, "generation": generation, "instance": _instance(random)}


def _instance(random: Random) -> str | None:
    instance: str | None = _of(random, (None, 10), ("i", 2), ("j", 1))
    return instance


def _sync(random: Random) -> dict[str, Any]:
    protocol = _of(random, (None, 4), ("range", 6), ("sticky", 1))
    return {**_member(random), "type": _of(random, (None, 4), ("consumer", 6), ("x", 1)), "protocol": protocol}


def _heartbeat_of_consumers(random: Random) -> dict[str, Any]:
    return {
        "group": _group(random),
        "member": _of(random, ("c1", 8), ("c2", 3), ("", 1)),
        "epoch": _of(random, ("join", 6), ("own", 8), ("leave", 3), ("static leave", 1), (7, 1)),
        "topics": _of(random, (["t"], 5), (["t", "u"], 3), (["missing"], 1), ([], 1), (None, 3)),
        "instance": _of(random, (None, 10), ("i", 2)),
        "assignor": _of(random, (None, 10), ("range", 2), ("other", 1)),
        "owned": _of(random, ("nothing", 6), ("assigned", 3), (None, 3)),
    }


def _named(name: str) -> Callable[[Random], dict[str, Any]]:
    return lambda random: {name: _named_group(random)}


_KINDS: Final[Mapping[str, tuple[int, Callable[[Random], dict[str, Any]]]]] = {
    "init_producer_id": (8, _init),
    "add_partitions_to_txn": (8, _add_partitions),
    "add_offsets_to_txn": (4, _add_offsets),
    "end_txn": (10, _end),
    "produce": (20, _produce),
    "txn_offset_commit": (8, _txn_offset_commit),
    "offset_commit": (4, _offset_commit),
    "offset_fetch": (4, _offset_fetch),
    "fetch": (4, _fetch),
    "list_offsets": (4, _list_offsets),
    "delete_records": (2, _delete_records),
    "write_txn_markers": (1, _markers),
    "describe_transactions": (2, lambda random: {"id": _id(random)}),
    "describe_producers": (2, lambda random: {"partition": _partition(random)}),
    "join_group": (3, _join),
    "sync_group": (3, _sync),
    "heartbeat": (2, _member),
    "leave_group": (2, _member),
    "describe_groups": (2, _named("group")),
    "delete_groups": (1, _named("group")),
    "offset_delete": (1, lambda random: {"group": _named_group(random), "partition": _partition(random)}),
    "consumer_group_heartbeat": (2, _heartbeat_of_consumers),
    "consumer_group_describe": (1, _named("group")),
    "offset_for_leader_epoch": (
        1,
        lambda random: {"partition": _partition(random), "leader_epoch": _of(random, (0, 4), (1, 1), (-1, 1))},
    ),
}
"""The weight of each API, and the maker of its fields."""
