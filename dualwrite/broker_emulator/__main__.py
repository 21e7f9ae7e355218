"""`python -m dualwrite.broker_emulator`: a cluster of its own process.

Prints the bootstrap address alone on one line once it serves, logs to standard error, and stops at SIGINT or
SIGTERM with exit status 0.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence

from dualwrite.broker_emulator.config import BrokerConfig, Profile
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.log.segment import StorageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop."""
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        emulator = Emulator(
            nodes=options.nodes,
            listen=options.listen,
            config=BrokerConfig.from_properties({"profile": options.profile, **dict(options.config)}),
            topics=dict(options.topic),
            data_dir=options.data_dir,
        )
    except ValueError as error:
        parser.error(str(error))
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        with emulator:
            print(emulator.bootstrap_servers, flush=True)
            stopped.wait()
    except StorageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dualwrite.broker_emulator", description="A Kafka cluster to test with."
    )
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="address of the first node")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--profile", choices=[str(profile) for profile in Profile], default=str(Profile.KIP_939))
    parser.add_argument("--data-dir", metavar="DIR", help="keep everything there; without it, in memory")
    parser.add_argument("--topic", type=_topic, action="append", default=[], metavar="NAME:PARTITIONS")
    parser.add_argument("--config", type=_setting, action="append", default=[], metavar="KEY=VALUE")
    return parser


def _topic(text: str) -> tuple[str, int]:
    name, colon, partitions = text.rpartition(":")
    return (name, int(partitions)) if colon else (text, 1)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


if __name__ == "__main__":
    raise SystemExit(main())
