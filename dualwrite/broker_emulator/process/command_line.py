"""`dualwrite broker`, or `python -m dualwrite.broker_emulator`: a cluster in a process of its own.

Once it serves, it prints the bootstrap address alone on the first line. The next lines have the URL of the control
endpoints (with --control) and of the schema registry (with --schema-registry). It logs to standard error. It stops with
exit status 0 at SIGINT or SIGTERM, and with --stop-with-stdin also at the end of standard input. If it cannot start, it
prints one line to standard error and exits with status 1 for an unusable data directory, with 2 for everything else.

It reports its state to the service manager that started it, if that asks for notifications (sd_notify(3)).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from dualwrite.broker_emulator.clock import Clock, SystemClock, VirtualClock
from dualwrite.broker_emulator.config import BrokerConfig, read_properties
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.process.tuning import settle_memory, take_all_descriptors
from dualwrite.broker_emulator.profiles import NAMES, NEWEST_RELEASE
from dualwrite.broker_emulator.security.listener import UNROUTABLE
from dualwrite.broker_emulator.topics.topics import why_not_a_topic_name

logger = logging.getLogger(__name__)

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

_SERVICE_MANAGER: Final = "NOTIFY_SOCKET"
_HOST = "127.0.0.1"
_MAX_PORT = 65535

_CLOCKS: Mapping[str, Callable[[], Clock]] = {
    "system": SystemClock,
    # starts now: clients have no virtual clock, and producer ids continue from those of an earlier process
    "virtual": lambda: VirtualClock(SystemClock().now_ms()),
}


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m dualwrite.broker_emulator") -> int:
    """Serve until SIGINT or SIGTERM, or the end of standard input. `prog` is the name of the command in messages.

    Raises SystemExit with status 2 for arguments that make no sense.
    """
    try:
        ended: int = command.main(arguments, prog, standalone_mode=False)
    except click.UsageError as error:  # one line, without the usage that --help shows
        print(f"{prog}: {error.format_message()}", file=sys.stderr)
        raise SystemExit(2) from None
    except click.ClickException as error:
        print(f"{prog}: {error.format_message()}", file=sys.stderr)
        return error.exit_code
    return ended


def _serve(options: Mapping[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    take_all_descriptors()
    emulator = _emulator(options)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    if options["stop_with_stdin"]:
        threading.Thread(target=_await_end_of_input, args=(stopped,), name="standard-input", daemon=True).start()
    listen = options["listen"]
    try:
        _start(emulator, f"--listen: {listen[0]}" if listen else "listeners")
        try:
            settle_memory()
            _print_addresses(emulator, listen)
            notify(READY)
            stopped.wait()
        finally:
            notify(STOPPING)
            emulator.stop()
    except StorageError as error:
        raise click.ClickException(str(error)) from None


def _await_end_of_input(stopped: threading.Event) -> None:
    """Read standard input until the parent process closes it or ends."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stopped.set()


def _emulator(options: Mapping[str, Any]) -> Emulator:
    host, port = options["listen"] or (_HOST, 0)
    nodes, control, registry = options["nodes"], options["control"], options["schema_registry"]
    if options["clock"] == "virtual" and control is None:
        raise click.UsageError("--clock: without --control, nothing could advance a virtual clock")
    if port and port + nodes - 1 > _MAX_PORT:
        raise click.UsageError(f"--listen: {nodes} nodes from port {port} on need ports beyond {_MAX_PORT}")
    try:
        return Emulator(
            nodes=nodes,
            listen=f"{host}:{port}" if options["listen"] else None,
            config=BrokerConfig.from_properties(_properties(options)),
            topics=dict(options["topic"]),
            scram_users={**(options["scram_users"] or {}), **dict(options["add_scram"])},
            data_dir=options["data_dir"],
            clock=_CLOCKS[options["clock"]](),
            control=control and "{}:{}".format(*control),
            schema_registry=registry and "{}:{}".format(*registry),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _print_addresses(emulator: Emulator, listen: tuple[str, int] | None) -> None:
    """Print the first listener, then the URLs of control and of the schema registry, then the other listeners."""
    host, _ = listen or (_HOST, 0)
    _warn_if_unroutable(host, emulator.bootstrap_servers)
    print(emulator.bootstrap_servers, flush=True)
    if emulator.control_url:
        print(emulator.control_url, flush=True)
    if emulator.schema_registry_url:
        print(emulator.schema_registry_url, flush=True)
    for name in emulator.listeners[1:]:
        print(f"{name}://{emulator.bootstrap(name)}", flush=True)


def _warn_if_unroutable(host: str, advertised: str) -> None:
    """Log a warning if clients get an address that is only valid on this machine."""
    if host.strip("[]") in UNROUTABLE and advertised.startswith(f"{host}:"):
        logger.warning(
            "the advertised address %s leads clients to their own machine: set one that reaches this machine with "
            "--config advertised.listeners=PLAINTEXT://HOST:PORT",
            advertised,
        )


def notify(state: str) -> None:
    """Send `state` to the service manager, if there is one. Keep serving if it cannot be reached."""
    address = os.environ.get(_SERVICE_MANAGER)
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect(address)
            manager.sendall(state.encode())
    except OSError:
        return


def _start(emulator: Emulator, where: str) -> None:
    try:
        emulator.start()
    except socket.gaierror as error:
        raise click.UsageError(f"{where}: {error.strerror}") from None
    except UnicodeError:
        raise click.UsageError(f"{where}: invalid host name") from None
    except OSError as error:
        raise click.UsageError(error.strerror or str(error)) from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise click.BadParameter(f"{text!r} is not host:port")
    if int(port) > _MAX_PORT:
        raise click.BadParameter(f"{text!r}: the greatest port is {_MAX_PORT}")
    return host, int(port)


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a whole number") from None
        if number < least:
            raise click.BadParameter(f"{number} is less than {least}")
        return number

    return parse


def _topic(text: str) -> tuple[str, int]:
    name, colon, partitions = text.rpartition(":")
    name, count = (name, _at_least(1)(partitions)) if colon else (text, 1)
    problem = why_not_a_topic_name(name)
    if problem is not None:
        raise click.BadParameter(problem)
    return name, count


def _user(text: str) -> tuple[str, str]:
    name, colon, password = text.partition(":")
    if not (colon and name and password):
        raise click.BadParameter("expected NAME:PASSWORD")
    return name, password


def _users(path: str) -> Mapping[str, str]:
    """Return the users of --scram-users."""
    try:
        users = read_properties(path)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not all(name and password for name, password in users.items()):
        raise click.BadParameter(f"{path}: expected NAME=PASSWORD in each line")
    return users


def _settings(text: str) -> Mapping[str, str]:
    """Return the setting of one --config, or the settings of its file."""
    name, equals, value = text.partition("=")
    if equals:
        return {name: value}
    try:
        return read_properties(text)
    except ValueError as error:
        raise click.BadParameter(f"neither NAME=VALUE nor a file: {error}") from error


def _properties(options: Mapping[str, Any]) -> dict[str, str]:
    """Return all settings; a later one overrides an earlier one."""
    properties = {name: value for settings in options["config"] for name, value in settings.items()}
    given = {} if options["profile"] is None else {"profile": options["profile"]}
    return {"profile": str(NEWEST_RELEASE), **properties, **given}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--listen",
    type=_address,
    metavar="HOST:PORT",
    help="Address of the first node; the others use the following ports; port 0: free ports. "
    "[default: that of --config listeners=..., else 127.0.0.1:0]",
)
@click.option("--nodes", type=_at_least(1), default=1, show_default=True, metavar="N", help="Number of brokers.")
@click.option(
    "--profile",
    type=click.Choice(NAMES),
    metavar="NAME",
    help=f"Behaviour to imitate: {', '.join(NAMES)}. [default: that of --config profile=..., else {NEWEST_RELEASE}]",
)
@click.option(
    "--control",
    type=_address,
    metavar="HOST:PORT",
    help="Serve control over HTTP, and a page that shows the state; port 0: a free port. [default: no control]",
)
@click.option(
    "--schema-registry",
    type=_address,
    metavar="HOST:PORT",
    help="Serve a schema registry; port 0: a free port. [default: no registry]",
)
@click.option(
    "--clock",
    type=click.Choice(list(_CLOCKS)),
    default="system",
    show_default=True,
    help="Source of the broker's time; a virtual clock stands still until it is advanced through --control.",
)
@click.option(
    "--stop-with-stdin",
    is_flag=True,
    help="Stop when standard input ends, so that the broker ends with the process that started it, even if that is "
    "killed.",
)
@click.option("--data-dir", metavar="DIR", help="Store everything in this directory. [default: in memory]")
@click.option(
    "--topic",
    type=_topic,
    multiple=True,
    metavar="NAME:PARTITIONS",
    help="Create this topic; may be repeated. [default: topics are created on first use]",
)
@click.option(
    "--add-scram",
    type=_user,
    multiple=True,
    metavar="NAME:PASSWORD",
    help="Allow this user to log in by SCRAM; may be repeated. Every user of this machine can read it (ps).",
)
@click.option(
    "--scram-users",
    type=_users,
    metavar="FILE",
    help="Allow the users in this properties file, NAME=PASSWORD, to log in by SCRAM.",
)
@click.option(
    "--config",
    type=_settings,
    multiple=True,
    metavar="NAME=VALUE|FILE",
    help="A broker setting by Kafka's name, or (without =) a properties file such as Kafka's server.properties; "
    "may be repeated, the last value of a setting wins.",
)
def command(**options: Any) -> int:
    """Run a Kafka cluster for tests, in one process."""
    _serve(options)
    return 0
