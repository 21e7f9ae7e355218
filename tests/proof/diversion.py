"""A model of the diversion of a pool: blocks of one row go to Kafka themselves, or to the outbox while Kafka is away.

Each step is one statement or one request. Kafka goes and comes at any moment, blocks are killed at any step, and those
that wait for a lock go on in any order. `Guards` are the rules that keep the order of the records; without one of them
the search finds a history in which it is lost. Rows, leases and epochs of single ids are left out: they are proven
elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple


@dataclass(frozen=True)
class Guards:
    """The rules, each of which can be left out."""

    reads_after_locks: bool = True
    """A block looks for a diversion after it has locked all its rows, and not before."""
    holds: bool = True
    """A block that adds records keeps the diversion from ending until it has committed."""
    begins: bool = True
    """A block that adds records while there is no diversion begins one in the same commit."""
    waits_for_holders: bool = True
    """The publisher locks the diversion before it looks whether records are left."""
    looks: bool = True
    """The publisher looks whether records are left."""
    confirms: bool = True
    """The publisher ends a diversion only when Kafka has confirmed its last batch."""


class At(Enum):
    """The step that a block takes next."""

    BEGIN = "begins"
    LOCK = "locks its row"
    LOOK = "looks for a diversion"
    SEND = "sends its records"
    COMMIT_BOTH = "commits the database, with Kafka prepared"
    FIRST = "begins the diversion unless there is one"
    HOLD = "holds the diversion"
    ADD = "adds its records to the outbox"
    COMMIT = "commits the database, with its records in the outbox"
    OVER = "is over"


class Block(NamedTuple):
    at: At = At.BEGIN
    believes: bool = False
    """Whether it has seen a diversion."""
    holds: bool = False
    begins: bool = False
    is_looking_early: bool = False
    offset: int = -1
    """The place of its prepared records in the log."""


class Batch(NamedTuple):
    """A batch of the publisher, whose records are in the log."""

    blocks: tuple[int, ...]
    is_decided: bool = False


class World(NamedTuple):
    blocks: tuple[Block, ...]
    is_away: bool = False
    outages: int = 1
    kills: int = 1
    owner: int = -1
    """The block that has locked the application's row."""
    is_diverted: bool = False
    """As committed."""
    exclusive: int = -1
    """The block that has changed the diversion and not committed yet."""
    publisher_locks: bool = False
    waiting: tuple[int, ...] = ()
    """The committed blocks in the outbox, by their numbers."""
    log: tuple[tuple[int, bool], ...] = ()
    """Blocks in the order of their records in the partition, and whether readers see them by now."""
    order: tuple[int, ...] = ()
    """Blocks in the order of their commits."""
    batch: Batch | None = None


Step = tuple[str, World]
GATE_FREE: Final = -1


class Diversion:
    """The possible steps, and what is wrong with a world."""

    def __init__(self, guards: Guards = Guards()) -> None:
        self._guards = guards

    def steps(self, world: World) -> Iterator[Step]:
        if not world.is_away and world.outages:
            yield "Kafka goes", world._replace(is_away=True, outages=world.outages - 1)
        if world.is_away:
            yield "Kafka comes back", world._replace(is_away=False)
        for number, block in enumerate(world.blocks):
            for text, after in self._of_block(world, number, block):
                yield f"block {number} {block.at.value}{text}", after
            if world.kills and block.at not in (At.BEGIN, At.OVER):
                yield f"block {number} is killed", self._killed(world, number)
        yield from self._of_publisher(world)

    # ---- blocks ---------------------------------------------------------------------------------------------

    def _of_block(self, world: World, number: int, block: Block) -> Iterator[Step]:
        match block.at:
            case At.BEGIN:
                believes = world.is_diverted and not self._guards.reads_after_locks
                yield "", _moved(world, number, block._replace(at=At.LOCK, believes=believes))
            case At.LOCK:
                if world.owner < 0:
                    at = At.LOOK if self._guards.reads_after_locks else (At.FIRST if block.believes else At.SEND)
                    yield "", _moved(world._replace(owner=number), number, block._replace(at=at))
            case At.LOOK:
                at = At.HOLD if world.is_diverted else At.SEND
                yield "", _moved(world, number, block._replace(at=at, believes=world.is_diverted))
            case At.SEND if world.is_away:
                yield " in vain", _moved(world, number, block._replace(at=At.FIRST))
            case At.SEND:
                sent = world._replace(log=(*world.log, (number, False)))
                yield "", _moved(sent, number, block._replace(at=At.COMMIT_BOTH, offset=len(world.log)))
            case At.COMMIT_BOTH:
                yield from self._commits(world, number, block)
            case At.FIRST:
                yield from self._begins(world, number, block)
            case At.HOLD:
                yield from self._holds(world, number, block)
            case At.ADD:
                yield "", _moved(world, number, block._replace(at=At.COMMIT))
            case At.COMMIT:
                yield from self._commits(world, number, block)

    def _begins(self, world: World, number: int, block: Block) -> Iterator[Step]:
        if not self._guards.begins:
            yield " without saying so", _moved(world, number, block._replace(at=At.ADD))
        elif world.exclusive >= 0 or world.publisher_locks or _holders(world) - {number}:
            return
        elif world.is_diverted:
            yield ": there is one", _moved(world, number, block._replace(at=At.HOLD))
        else:
            begun = world._replace(exclusive=number)
            yield "", _moved(begun, number, block._replace(at=At.ADD, begins=True))

    def _holds(self, world: World, number: int, block: Block) -> Iterator[Step]:
        if not self._guards.holds:
            yield " without a lock", _moved(world, number, block._replace(at=At.ADD))
        elif world.exclusive >= 0 or world.publisher_locks:
            return
        else:
            at = At.ADD if world.is_diverted else At.FIRST
            yield "", _moved(world, number, block._replace(at=at, holds=True))

    def _commits(self, world: World, number: int, block: Block) -> Iterator[Step]:
        after = _released(world, number)._replace(order=(*world.order, number))
        if block.at is At.COMMIT:
            after = after._replace(waiting=(*world.waiting, number), is_diverted=world.is_diverted or block.begins)
        yield "", _moved(after, number, Block(At.OVER, offset=block.offset))

    @staticmethod
    def _killed(world: World, number: int) -> World:
        """Roll back; Kafka aborts the records, which no row names."""
        log = tuple(entry for entry in world.log if entry[0] != number)
        after = _released(world, number)._replace(kills=world.kills - 1, log=log)
        return _moved(after, number, Block(At.OVER))

    # ---- the publisher and Kafka ----------------------------------------------------------------------------

    def _of_publisher(self, world: World) -> Iterator[Step]:
        yield from self._completes(world)
        batch = world.batch
        if batch is None and world.waiting and not world.is_away and not world.publisher_locks:
            log = (*world.log, *((number, False) for number in world.waiting))
            yield "the publisher sends", world._replace(batch=Batch(world.waiting), log=log)
        if batch is not None and not batch.is_decided:
            left = tuple(number for number in world.waiting if number not in batch.blocks)
            yield "the publisher decides", world._replace(waiting=left, batch=batch._replace(is_decided=True))
        is_confirmed = batch is None or not self._guards.confirms
        if world.is_diverted and is_confirmed and not (batch is not None and not batch.is_decided):
            yield from self._ends(world)

    def _completes(self, world: World) -> Iterator[Step]:
        """Let Kafka show decided records to readers."""
        if world.is_away:
            return
        if world.batch is not None and world.batch.is_decided:
            log = tuple((number, seen or number in world.batch.blocks) for number, seen in world.log)
            yield "Kafka commits the batch", world._replace(batch=None, log=log)
        for number, block in enumerate(world.blocks):
            if block.at is At.OVER and (number, False) in world.log and block.offset >= 0:
                log = tuple((each, seen or each == number) for each, seen in world.log)
                yield f"Kafka commits block {number}", world._replace(log=log)

    def _ends(self, world: World) -> Iterator[Step]:
        if not self._guards.waits_for_holders:
            if world.publisher_locks:
                yield "the publisher ends it", world._replace(is_diverted=False, publisher_locks=False)
            elif not world.waiting or not self._guards.looks:
                yield "the publisher finds nothing", world._replace(publisher_locks=True)
        elif world.exclusive < 0 and not _holders(world) and (not world.waiting or not self._guards.looks):
            yield "the publisher ends the diversion", world._replace(is_diverted=False)

    # ---- what must hold -------------------------------------------------------------------------------------

    def wrong(self, world: World) -> str | None:
        if not world.is_diverted and (world.waiting or world.batch is not None):
            return "blocks go to Kafka while the outbox is not empty"
        published = [number for number, _ in world.log if number in world.order]
        if len(set(published)) < len(published):
            return "records are there twice"
        if published != [number for number in world.order if number in published]:
            return "records are not in the order of the commits"
        if self._is_at_rest(world) and sorted(published) != sorted(world.order):
            return "records are lost"
        return None

    def _is_at_rest(self, world: World) -> bool:
        return not any(True for text, _ in self.steps(world) if text != "Kafka goes")


def _holders(world: World) -> set[int]:
    return {number for number, block in enumerate(world.blocks) if block.holds}


def _moved(world: World, number: int, block: Block) -> World:
    return world._replace(blocks=(*world.blocks[:number], block, *world.blocks[number + 1 :]))


def _released(world: World, number: int) -> World:
    """Release the locks of a block."""
    owner = -1 if world.owner == number else world.owner
    return world._replace(owner=owner, exclusive=-1 if world.exclusive == number else world.exclusive)


class Found(NamedTuple):
    worlds: int
    at_rest: int
    wrong: str | None
    story: tuple[str, ...] = ()


def search(guards: Guards, blocks: int, *, outages: int = 1, kills: int = 1) -> Found:
    """Search all histories, the shortest first."""
    rules = Diversion(guards)
    first = World((Block(),) * blocks, outages=outages, kills=kills)
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    queue = deque([first])
    at_rest = 0
    while queue:
        world = queue.popleft()
        if (wrong := rules.wrong(world)) is not None:
            return Found(len(came_from), at_rest, wrong, _story(came_from, world))
        steps = list(rules.steps(world))
        at_rest += not [text for text, _ in steps if text != "Kafka goes"]
        for text, after in steps:
            if after not in came_from:
                came_from[after] = world, text
                queue.append(after)
    return Found(len(came_from), at_rest, None)


def _story(came_from: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    told: list[str] = []
    while (step := came_from[world]) is not None:
        world = step[0]
        told.append(step[1])
    return tuple(reversed(told))


def without(name: str) -> Guards:
    """Return all guards but one."""
    return replace(Guards(), **{name: False})
