"""The network: connections between places, with seeded latencies, cuts, slow links, and losses.

A connection delivers in order; there is no order between connections. If one is lost, each end hears of it at a time of
its own, and messages under way arrive until then: a request may be carried out long after its sender has given up.
While two places are cut off from each other, messages wait, as with TCP, and are not refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.proof.simulation.loop import Process, SimulatedLoop

_LOST: Final = object()
_AGAIN_S: Final = 1.0
_LATE_S: Final = 20.0
"""How late an end may notice that the other is gone."""


class End:
    """One end of a connection."""

    __slots__ = (
        "_waiting",
        "arrives_s",
        "is_closed",
        "is_reading",
        "link",
        "on_lost",
        "on_message",
        "other",
        "place",
        "process",
    )

    def __init__(self, link: Link, process: Process, place: str) -> None:
        self.link = link
        self.process = process
        self.place = place
        self.on_message: Callable[[Any], None] = _ignore
        self.on_lost: Callable[[Exception | None], None] = _ignore
        self.is_closed = False
        self.is_reading = True
        self.arrives_s = 0.0
        """When the last message to this end arrives."""
        self.other: End
        self._waiting: list[Any] = []

    def send(self, message: Any) -> None:
        """Send to the other end, unless this one is closed or its process dead."""
        if not self.is_closed and self.process.is_alive:
            self.link.network.carry(self.link, self.other, message)

    def close(self, error: Exception | None = None) -> None:
        """Close this end, and let the other one know in time."""
        if self.is_closed:
            return
        self.send(_LOST)
        self.lose(error)

    def lose(self, error: Exception | None) -> None:
        """Notice that the connection is gone."""
        if self.is_closed:
            return
        self.is_closed = True
        self.link.network.forget_if_over(self.link)
        self.link.network.loop.call_soon_in(self.process, self.on_lost, error)

    def arrive(self, message: Any) -> None:
        """Take a message from the network."""
        if self.is_closed:
            return
        if not self.is_reading:
            self._waiting.append(message)
        elif message is _LOST:
            self.lose(None)
        else:
            self.on_message(message)

    def read_on(self) -> None:
        """Take the messages that arrived in the meantime."""
        self.is_reading = True
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.link.network.loop.call_soon_in(self.process, self.arrive, message)


class Link:
    """A connection: the end that opened it, and the other one."""

    __slots__ = ("far", "held", "near", "network", "number")

    def __init__(self, network: Network, number: int) -> None:
        self.network = network
        self.number = number
        self.held: list[tuple[End, Any]] = []
        """The messages under way between places that are cut off from each other."""
        self.near: End
        self.far: End


class Listener:
    """Accepts connections at a port."""

    def __init__(self, process: Process, place: str, accept: Callable[[End], None]) -> None:
        self.process = process
        self.place = place
        self.accept = accept


class Network:
    """All places and connections."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop: Final = loop
        self._random = random
        self.listeners: dict[int, Listener] = {}
        self.links: dict[int, Link] = {}
        self._opened = 0
        self._cuts: set[frozenset[str]] = set()
        self.slowness: dict[str, float] = {}
        """How many times longer every message to and from a place takes."""
        loop.connect = self._create_connection

    # ---- places ---------------------------------------------------------------------------------------------

    def is_cut(self, one: str, other: str) -> bool:
        """Return whether nothing gets from one place to the other."""
        return bool(self._cuts) and frozenset((one, other)) in self._cuts

    def cut(self, one: str, other: str) -> None:
        """Cut two places off from each other."""
        self._cuts.add(frozenset((one, other)))

    def heal(self, one: str, other: str) -> None:
        """Connect two places again; waiting messages go on."""
        self._cuts.discard(frozenset((one, other)))
        for link in list(self.links.values()):
            if link.held and {link.near.place, link.far.place} == {one, other}:
                held, link.held = link.held, []
                for end, message in held:
                    self.carry(link, end, message)

    def heal_all(self) -> None:
        """Connect all places, and make all of them fast."""
        self.slowness.clear()
        for pair in sorted(map(sorted, self._cuts)):
            self.heal(pair[0], pair[-1])

    def latency_s(self, one: str, other: str) -> float:
        """Draw how long one message takes."""
        drawn = self._random.random()
        latency_s = 0.0002 + 0.0018 * drawn * drawn
        if self.slowness:
            latency_s *= self.slowness.get(one, 1.0) * self.slowness.get(other, 1.0)
        return latency_s

    # ---- connections ----------------------------------------------------------------------------------------

    def carry(self, link: Link, to: End, message: Any) -> None:
        """Carry a message to an end."""
        one, other = link.near.place, link.far.place
        if self._cuts and self.is_cut(one, other):
            link.held.append((to, message))
            return
        to.arrives_s = max(to.arrives_s, self.loop.now_s + self.latency_s(one, other))
        self.loop.call_at_in(to.process, to.arrives_s, to.arrive, message)

    async def open(self, process: Process, place: str, port: int) -> End:
        """Connect to a port. Raises ConnectionRefusedError without a listener; waits for ever if it is cut off."""
        listener = self.listeners.get(port)
        there = "" if listener is None else listener.place
        await asyncio.sleep(self.latency_s(place, there))
        while self.is_cut(place, there):  # noqa: ASYNC110 - as TCP does
            await asyncio.sleep(_AGAIN_S)
        listener = self.listeners.get(port)
        if listener is None or not listener.process.is_alive:
            raise ConnectionRefusedError(111, "Connection refused")
        self._opened += 1
        link = Link(self, self._opened)
        near, far = End(link, process, place), End(link, listener.process, listener.place)
        near.other, far.other, link.near, link.far = far, near, near, far
        self.links[link.number] = link
        self.loop.call_soon_in(listener.process, listener.accept, far)
        return near

    def forget_if_over(self, link: Link) -> None:
        """Drop a connection that both ends have closed."""
        if link.near.is_closed and link.far.is_closed:
            self.links.pop(link.number, None)

    def break_connection(self, link: Link) -> None:
        """Lose a connection. One end notices now, the other one at once, soon, or late; messages under way arrive."""
        first, second = (link.near, link.far) if self._random.random() < 0.7 else (link.far, link.near)
        error = ConnectionResetError(104, "Connection reset by peer")
        first.lose(error)
        delay_s = self._random.choice((0.0, 0.01, 0.5, _LATE_S))
        self.loop.call_at_in(self.loop.world, self.loop.now_s + delay_s, second.lose, error)

    def drop_connections_of(self, process: Process, *, is_silent: bool = False) -> None:
        """End the connections of a dead process. `is_silent`: its machine is gone too, so the others do not notice."""
        for link in list(self.links.values()):
            for end in (link.near, link.far):
                if end.process is not process or end.is_closed:
                    continue
                end.is_closed = True
                if is_silent:
                    after_s = self._random.random() * _LATE_S
                    self.loop.call_at_in(self.loop.world, self.loop.now_s + after_s, end.other.lose, None)
                else:
                    self.carry(link, end.other, _LOST)
            self.forget_if_over(link)

    # ---- asyncio's connections ------------------------------------------------------------------------------

    async def _create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[Transport, asyncio.Protocol]:
        process = self.loop.current
        end = await self.open(process, process.name, port)
        protocol = factory()
        transport = Transport(end, protocol)
        return transport, protocol


class Transport(asyncio.Transport):
    """A connection as asyncio's transport."""

    def __init__(self, end: End, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._end = end
        end.on_message = protocol.data_received
        end.on_lost = protocol.connection_lost
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        """Send bytes."""
        self._end.send(bytes(data))

    def close(self) -> None:
        """Close the connection."""
        self._end.close()

    abort = close

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self._end.is_closed

    def pause_reading(self) -> None:
        """Let arriving data wait."""
        self._end.is_reading = False

    def resume_reading(self) -> None:
        """Take the waiting data."""
        if not self._end.is_reading:
            self._end.read_on()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the other end."""
        return (self._end.other.place, self._end.link.number) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""


def _ignore(_: Any) -> None:
    pass
