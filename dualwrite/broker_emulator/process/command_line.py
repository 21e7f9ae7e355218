"""`dualwrite broker`, or `python -m dualwrite.broker_emulator`: a cluster of its own process.

Prints the bootstrap address alone on one line once it serves, and with --control the URL of that on a second one, logs
to standard error, and stops at SIGINT or SIGTERM with exit status 0. What keeps it from starting is one line on
standard error: exit status 2, or 1 where it is the data directory.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from dualwrite.broker_emulator.clock import Clock, SystemClock, VirtualClock
from dualwrite.broker_emulator.cluster.topic_names import why_not_a_topic_name
from dualwrite.broker_emulator.config import BrokerConfig, Profile
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.log.segment import StorageError
from dualwrite.broker_emulator.process.properties import read_properties
from dualwrite.broker_emulator.process.service_notification import READY, STOPPING, notify
from dualwrite.broker_emulator.process.tuning import take_all_descriptors
from dualwrite.broker_emulator.security.listener import UNROUTABLE

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_MAX_PORT = 65535

_CLOCKS: Mapping[str, Callable[[], Clock]] = {
    "system": SystemClock,
    # clients have no virtual clock, and producer ids go on from where an earlier process left them
    "virtual": lambda: VirtualClock(SystemClock().now_ms()),
}


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage, which --help shows."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m dualwrite.broker_emulator") -> int:
    """Serve until told to stop. `prog`: what the command is called."""
    parser = _parser(prog)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    take_all_descriptors()
    emulator = _emulator(options, parser)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        _start(emulator, parser, f"argument --listen: {options.listen[0]}" if options.listen else "listeners")
        try:
            _say_where(emulator, options)
            notify(READY)
            stopped.wait()
        finally:
            notify(STOPPING)
            emulator.stop()
    except StorageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


def _emulator(options: argparse.Namespace, parser: _Parser) -> Emulator:
    host, port = options.listen or (_HOST, 0)
    if options.clock == "virtual" and options.control is None:
        parser.error("argument --clock: nothing could move a virtual clock without --control")
    if port and port + options.nodes - 1 > _MAX_PORT:
        parser.error(f"argument --listen: {options.nodes} nodes from port {port} on need ports beyond {_MAX_PORT}")
    try:
        return Emulator(
            nodes=options.nodes,
            listen=f"{host}:{port}" if options.listen else None,
            config=BrokerConfig.from_properties(_properties(options)),
            topics=dict(options.topic),
            scram_users=dict(options.add_scram),
            data_dir=options.data_dir,
            clock=_CLOCKS[options.clock](),
            control=options.control and "{}:{}".format(*options.control),
        )
    except ValueError as error:
        parser.error(str(error))


def _say_where(emulator: Emulator, options: argparse.Namespace) -> None:
    """On standard output: the first listener, then control, then the other listeners."""
    host, _ = options.listen or (_HOST, 0)
    _warn_of_unroutable(host, emulator.bootstrap_servers)
    print(emulator.bootstrap_servers, flush=True)
    if emulator.control_url:
        print(emulator.control_url, flush=True)
    for name in emulator.listeners[1:]:
        print(f"{name}://{emulator.bootstrap(name)}", flush=True)


def _warn_of_unroutable(host: str, told: str) -> None:
    """Say it where clients are told an address that only this machine understands."""
    if host.strip("[]") in UNROUTABLE and told.startswith(f"{host}:"):
        logger.warning(
            "clients are told to connect to %s, which leads them to their own machine: say how this one is reached "
            "with --config advertised.listeners=PLAINTEXT://HOST:PORT",
            told,
        )


def _start(emulator: Emulator, parser: _Parser, where: str) -> None:
    try:
        emulator.start()
    except socket.gaierror as error:
        parser.error(f"{where}: {error.strerror}")
    except UnicodeError:
        parser.error(f"{where} cannot be the name of a host")
    except OSError as error:
        parser.error(error.strerror or str(error))


def _parser(prog: str) -> _Parser:
    parser = _Parser(prog=prog, description="A Kafka cluster to test with.")
    parser.add_argument(
        "--listen",
        type=_address,
        metavar="HOST:PORT",
        help="where the first node listens; the others take the following ports; port 0: free ones "
        "(default: what --config listeners=... says, else 127.0.0.1:0)",
    )
    parser.add_argument(
        "--nodes", type=_at_least(1), default=1, metavar="N", help="how many brokers (default: %(default)s)"
    )
    parser.add_argument(
        "--profile",
        choices=[str(profile) for profile in Profile],
        help="whose behaviour is imitated (default: kip-939, everything that the KIPs say)",
    )
    parser.add_argument(
        "--control",
        type=_address,
        metavar="HOST:PORT",
        help="serve control over HTTP and a page that shows the state there; port 0: a free one (default: no control)",
    )
    parser.add_argument(
        "--clock",
        choices=list(_CLOCKS),
        default="system",
        help="where the broker's time comes from; a virtual clock stands still until it is moved by --control "
        "(default: %(default)s)",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="keep everything there; without it, in memory")
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="NAME:PARTITIONS",
        help="create this topic; may be given several times (default: topics are created when first used)",
    )
    parser.add_argument(
        "--add-scram",
        type=_user,
        action="append",
        default=[],
        metavar="NAME:PASSWORD",
        help="let this user log in by SCRAM; may be given several times",
    )
    parser.add_argument(
        "--config",
        type=_settings,
        action="append",
        default=[],
        metavar="NAME=VALUE|FILE",
        help="a broker setting by Kafka's name, or (without =) a file of them such as Kafka's server.properties; "
        "may be given several times, and the last one counts",
    )
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    if int(port) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r}: the greatest port is {_MAX_PORT}")
    return host, int(port)


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return parse


def _topic(text: str) -> tuple[str, int]:
    name, colon, partitions = text.rpartition(":")
    name, count = (name, _at_least(1)(partitions)) if colon else (text, 1)
    problem = why_not_a_topic_name(name)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return name, count


def _user(text: str) -> tuple[str, str]:
    name, colon, password = text.partition(":")
    if not (colon and name and password):
        raise argparse.ArgumentTypeError("it takes a user's name and password, with a colon between them")
    return name, password


def _settings(text: str) -> Mapping[str, str]:
    """What one --config sets."""
    name, equals, value = text.partition("=")
    if equals:
        return {name: value}
    try:
        return read_properties(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"neither NAME=VALUE nor a file: {error}") from error


def _properties(options: argparse.Namespace) -> dict[str, str]:
    """All settings, a later one in place of one before it."""
    properties = {name: value for settings in options.config for name, value in settings.items()}
    return properties if options.profile is None else {**properties, "profile": options.profile}
